"""With row-invariant arithmetic a token's logits have the same bits in any chunks, slots and company."""

from collections.abc import Sequence

import pytest
import torch

from headrace.models.batch import KVCache
from headrace.models.decoder.forward import DecoderModel
from headrace.models.decoder.invariant import ROW_INVARIANT
from headrace.models.registry import forward_class, read_config
from tests.models.harness import Request, empty_cache, step, theirs_logits
from tests.models.options import ROPES, SLIDING, Fields
from tests.tiny_models import config_json, in_dtype, make_tiny, parameters_of, random_ids

OPTIONS: dict[str, tuple[str, Fields]] = {
    **{family: (family, {}) for family in ("llama", "mistral", "qwen2", "qwen3")},
    "mqa": ("llama", {"num_key_value_heads": 1}),
    "head-dim-10": ("llama", {"head_dim": 10}),
    "dynamic": ("llama", ROPES["dynamic"]),
    "window-by-layer": SLIDING["qwen3-window-by-layer"],
    "window-16": SLIDING["mistral-window-16"],
}
PROMPT, TOKENS, SLOTS = 150, 170, 1000


@pytest.fixture(scope="module", params=OPTIONS)
def option(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def decoder(option: str, request: pytest.FixtureRequest) -> DecoderModel:
    family, fields = OPTIONS[option]
    model = in_dtype(make_tiny(family, **fields), request.param)
    config = config_json(model)
    return forward_class(config)(read_config(config), parameters_of(model), ROW_INVARIANT)


@pytest.fixture(scope="module")
def ids(option: str) -> list[int]:
    return random_ids(make_tiny("llama"), TOKENS, seed=5)


@pytest.fixture(scope="module")
def alone(decoder: DecoderModel, ids: list[int]) -> torch.Tensor:
    """The logits of all tokens, the prompt's computed at once and the others one by one: [TOKENS, vocab]."""
    request = Request(torch.arange(TOKENS), prompt_length=PROMPT)
    cache = empty_cache(decoder, TOKENS)
    run(decoder, cache, request, ids, [PROMPT])
    return torch.stack(request.logits)


def run(
    decoder: DecoderModel, cache: KVCache, request: Request, ids: list[int], chunks: Sequence[int]
) -> None:
    """Compute the chunks as prompt chunks and what is left as single tokens."""
    for count in chunks:
        step(decoder, cache, prefills=[(request, ids[request.length : request.length + count])])
    while request.length < len(ids):
        step(decoder, cache, decodes=[(request, ids[request.length])])


def scattered(*counts: int, seed: int) -> list[torch.Tensor]:
    """Different slots in no order for requests of so many tokens."""
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(seed))
    return list(torch.split(slots[: sum(counts)], counts))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_in_chunks_gives_the_same_bits(
    decoder: DecoderModel, ids: list[int], alone: torch.Tensor, chunk: int
) -> None:
    request = Request(scattered(TOKENS, seed=1)[0], prompt_length=PROMPT)
    whole, rest = divmod(PROMPT, chunk)
    run(decoder, empty_cache(decoder, SLOTS), request, ids, [chunk] * whole + [rest] * bool(rest))
    assert torch.equal(torch.stack(request.logits), alone)


def test_tokens_that_were_decoded_and_are_computed_again_as_a_prompt_give_the_same_bits(
    decoder: DecoderModel, ids: list[int], alone: torch.Tensor
) -> None:
    # As after a retraction.
    request = Request(scattered(TOKENS, seed=2)[0], prompt_length=PROMPT)
    run(decoder, empty_cache(decoder, SLOTS), request, ids, [64, 64, TOKENS - 128])
    assert torch.equal(torch.stack(request.logits), alone)


@pytest.mark.parametrize("seed", [0, 1])
def test_company_of_all_kinds_changes_no_bit(
    decoder: DecoderModel, ids: list[int], alone: torch.Tensor, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def any_number(most: int) -> int:
        return 1 + int(torch.randint(most, (), generator=generator))

    lengths = [any_number(150) for _ in range(5)]
    mine, *others = scattered(TOKENS, *lengths, seed=seed)
    request, cache = Request(mine, prompt_length=PROMPT), empty_cache(decoder, SLOTS)
    company = [Request(slots, prompt_length=len(slots)) for slots in others]
    while request.length < TOKENS:
        prefills: list[tuple[Request, Sequence[int]]] = []
        decodes: list[tuple[Request, int]] = []
        for other in company:
            left = len(other.slots) - other.length
            if left and any_number(3) > 1:
                if other.length and any_number(2) == 1:
                    decodes.append((other, any_number(300)))
                else:
                    prefills.append((other, [any_number(300)] * any_number(min(left, 60))))
        if request.length < PROMPT:
            count = any_number(min(60, PROMPT - request.length))
            prefills.append((request, ids[request.length : request.length + count]))
        else:
            decodes.append((request, ids[request.length]))
        step(decoder, cache, prefills, decodes)
    assert torch.equal(torch.stack(request.logits), alone)


def test_what_was_computed_for_another_prompt_with_the_same_beginning_serves_bit_for_bit(
    decoder: DecoderModel, ids: list[int], alone: torch.Tensor
) -> None:
    kept = 96
    beginning, own, others = scattered(kept, TOKENS - kept, 100, seed=3)
    cache = empty_cache(decoder, SLOTS)
    first = Request(torch.cat((beginning, others)))
    step(decoder, cache, prefills=[(first, ids[:kept] + ids[100:140])])
    request = Request(torch.cat((beginning, own)), length=kept, prompt_length=PROMPT)
    run(decoder, cache, request, ids, [PROMPT - kept])
    # Where keys depend on the whole prompt's length, they differ, and the engine shares none.
    is_same = torch.equal(torch.stack(request.logits), alone[kept:])
    assert is_same is not decoder.config.rope.depends_on_length


def test_the_logits_are_no_further_from_exact_ones_than_those_of_transformers(
    decoder: DecoderModel, option: str, ids: list[int], alone: torch.Tensor
) -> None:
    family, fields = OPTIONS[option]
    model = in_dtype(make_tiny(family, **fields), decoder.dtype)
    exact = make_tiny(family, **fields)
    torch.nn.Module.load_state_dict(exact, {name: t.float() for name, t in model.state_dict().items()})
    reference = theirs_logits(exact, ids[:PROMPT])
    if decoder.dtype is torch.float32:
        torch.testing.assert_close(alone[:PROMPT], reference, rtol=1e-4, atol=5e-4)
    else:
        their_error = (theirs_logits(model, ids[:PROMPT]) - reference).abs().max()
        assert (alone[:PROMPT] - reference).abs().max() <= 1.5 * their_error
