"""Without the C++ kernels every family computes the same, in torch: the paths that a machine without a compiler takes."""

from collections.abc import Iterator

import pytest
import torch

from headrace.kernels.native import parts
from headrace.kernels.native.library import VARIABLE, kernels
from headrace.models.decoder.invariant import ROW_INVARIANT
from headrace.models.registry import forward_class, read_config
from tests.models.harness import Request, empty_cache, greedy, ours, step, theirs_greedy
from tests.tiny_models import config_json, in_dtype, make_tiny, parameters_of, random_ids

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
each_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def _in_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "reference")
    kernels.cache_clear()
    assert not parts.can_compute(torch.zeros(1))
    yield
    monkeypatch.undo()
    kernels.cache_clear()
    assert parts.can_compute(torch.zeros(1))


@each_family
@pytest.mark.usefixtures("_in_torch")
def test_float32_greedy_tokens_are_those_of_transformers(family: str) -> None:
    model = make_tiny(family)
    prompt = random_ids(model, 30, seed=3)
    theirs = theirs_greedy(model, prompt, 12)
    assert greedy(ours(model), prompt, 12) == theirs
    assert greedy(ours(model), prompt, 12, chunk=9) == theirs


@each_family
@pytest.mark.usefixtures("_in_torch")
def test_a_prompts_logits_have_the_same_bits_in_any_chunks_when_that_is_wanted(family: str) -> None:
    model = make_tiny(family)
    decoder = forward_class(config_json(model))(
        read_config(config_json(model)), parameters_of(model), ROW_INVARIANT
    )
    prompt = random_ids(model, 40, seed=4)
    whole = step(decoder, empty_cache(decoder, 40), prefills=[(Request(torch.arange(40)), prompt)])
    cache, request = empty_cache(decoder, 40), Request(torch.arange(40), prompt_length=40)
    chunks = [step(decoder, cache, prefills=[(request, prompt[at : at + 13])]) for at in range(0, 40, 13)]
    assert torch.equal(torch.cat(chunks), whole)


@each_family
def test_the_two_ways_give_the_same_logits_but_for_rounding(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny(family)
    prompt = random_ids(model, 30, seed=5)

    def logits() -> torch.Tensor:
        decoder = ours(model)
        return step(decoder, empty_cache(decoder, 30), prefills=[(Request(torch.arange(30)), prompt)])

    native = logits()
    monkeypatch.setattr(parts, "library", lambda: None)
    reference = logits()
    assert not torch.equal(native, reference)  # they were two ways
    torch.testing.assert_close(native, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.bfloat16, "kernels in C"), (torch.float16, "PyTorch's own kernels")]
)
def test_the_log_says_what_computes_a_dtype(dtype: torch.dtype, expected: str) -> None:
    assert parts.describe(dtype).startswith(expected)


@pytest.mark.usefixtures("_in_torch")
def test_the_log_says_that_torch_computes_where_that_is_wanted() -> None:
    assert parts.describe(torch.bfloat16) == "PyTorch's own kernels"


def test_half_precision_is_torchs() -> None:
    half = in_dtype(make_tiny("llama"), torch.float16)
    decoder = ours(half)
    logits = step(
        decoder, empty_cache(decoder, 8), prefills=[(Request(torch.arange(8)), random_ids(half, 8, seed=6))]
    )
    assert logits.isfinite().all()
