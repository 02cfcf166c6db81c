"""Our decoders give what transformers gives for the same weights, for each option of the families."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.models.harness import (
    Request,
    empty_cache,
    greedy,
    ours,
    step,
    theirs_forced,
    theirs_greedy,
    theirs_logits,
)
from tests.models.options import ANSWER, PROMPT, SLIDING, Fields, distinct, each_option
from tests.tiny_models import in_dtype, random_ids


@each_option
def test_float32_logits_are_those_of_transformers(family: str, fields: Fields) -> None:
    model = distinct(family, fields)
    ids = random_ids(model, PROMPT, seed=2)
    decoder = ours(model)
    logits = step(decoder, empty_cache(decoder, PROMPT), prefills=[(Request(torch.arange(PROMPT)), ids)])
    torch.testing.assert_close(logits, theirs_logits(model, ids), rtol=1e-4, atol=1e-4)


@each_option
def test_float32_greedy_tokens_are_those_of_transformers(family: str, fields: Fields) -> None:
    """The prompt whole and in chunks, which end before, at and after what windows and scalings begin at."""
    model = distinct(family, fields)
    prompt = random_ids(model, PROMPT, seed=3)
    theirs = theirs_greedy(model, prompt, ANSWER)
    decoder = ours(model)
    assert greedy(decoder, prompt, ANSWER) == theirs
    assert greedy(decoder, prompt, ANSWER, chunk=9) == theirs


@each_option
def test_bfloat16_strays_no_further_from_float32_than_transformers(family: str, fields: Fields) -> None:
    exact = distinct(family, fields)
    # The reference computes in float32 with the weights that bfloat16 can hold.
    rounded = in_dtype(exact, torch.bfloat16)
    exact.load_state_dict({name: tensor.float() for name, tensor in rounded.state_dict().items()})
    texts = [random_ids(exact, PROMPT + ANSWER, seed=seed) for seed in (7, 8, 9)]

    decoder = ours(rounded)
    assert decoder.dtype is torch.bfloat16
    cache = empty_cache(decoder, 3 * (PROMPT + ANSWER))
    requests = [Request(slots) for slots in torch.split(torch.arange(3 * (PROMPT + ANSWER)), PROMPT + ANSWER)]
    pairs = list(zip(requests, texts, strict=True))
    step(decoder, cache, prefills=[(request, ids[:PROMPT]) for request, ids in pairs])
    for place in range(PROMPT, PROMPT + ANSWER):
        step(decoder, cache, decodes=[(request, ids[place]) for request, ids in pairs])

    def theirs(model: PreTrainedModel) -> torch.Tensor:
        if decoder.config.rope.depends_on_length:
            # Then it matters at which length each key was made.
            return torch.cat([theirs_forced(model, ids[:PROMPT], ids[PROMPT:]) for ids in texts])
        return torch.cat([theirs_logits(model, ids) for ids in texts])

    reference = theirs(exact)
    their_error = theirs(rounded) - reference
    our_error = torch.stack([row for request in requests for row in request.logits]) - reference
    assert our_error.abs().max() <= 2 * their_error.abs().max()
    # The greatest of all errors is a matter of luck; the mean is not.
    assert our_error.square().mean() <= 1.25 * their_error.square().mean()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_float16_runs_close_to_float32(family: str) -> None:
    exact = distinct(family, {})
    half = in_dtype(exact, torch.float16)
    ids = random_ids(exact, PROMPT, seed=5)
    decoder = ours(half)
    logits = step(decoder, empty_cache(decoder, PROMPT), prefills=[(Request(torch.arange(PROMPT)), ids)])
    reference = theirs_logits(exact, ids)
    our_error, their_error = ((found - reference).abs().max() for found in (logits, theirs_logits(half, ids)))
    assert our_error <= 1.5 * their_error


@pytest.mark.parametrize("name", [name for name in SLIDING if name != "mistral-window-of-the-prompt"])
def test_the_reference_does_apply_the_window(name: str) -> None:
    """Otherwise the comparisons above would prove nothing."""
    family, fields = SLIDING[name]
    model = distinct(family, fields)
    ids = random_ids(model, PROMPT, seed=2)
    windowed = theirs_logits(model, ids)
    eager = distinct(family, {**fields, "attn_implementation": "eager"})
    torch.testing.assert_close(theirs_logits(eager, ids), windowed, rtol=1e-4, atol=1e-4)
    off = {"sliding_window": None, "use_sliding_window": False, "layer_types": None}
    unwindowed = distinct(family, {**fields, **off})
    assert (theirs_logits(unwindowed, ids)[-1] - windowed[-1]).abs().max() > 0.05
