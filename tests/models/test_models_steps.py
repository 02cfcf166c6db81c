"""How tokens are spread over steps, chunks and slots changes nothing about their logits."""

import math

import pytest
import torch

from headrace.models.batch import KVCache
from headrace.models.decoder.forward import DecoderModel
from headrace.models.layout import EMBEDDED_ROWS
from headrace.models.registry import layout_of
from tests.models.harness import (
    Request,
    batch_of,
    empty_cache,
    greedy,
    ours,
    step,
    theirs_greedy,
    theirs_logits,
)
from tests.models.options import SLIDING, Fields
from tests.tiny_models import config_json, in_dtype, make_tiny, median_gap, parameters_of, random_ids

FAMILIES = ["llama", "qwen2", "mistral", "qwen3"]


def scattered(count: int, slots: int, seed: int) -> torch.Tensor:
    """`count` different slots in no order, but never slot 0."""
    return 1 + torch.randperm(slots - 1, generator=torch.Generator().manual_seed(seed))[:count]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 69])
def test_a_prompt_in_chunks_gives_the_same_tokens(family: str, chunk: int) -> None:
    model = make_tiny(family)
    assert median_gap(model) > 0.05
    prompt = random_ids(model, 70, seed=3)
    assert greedy(ours(model), prompt, 16, chunk) == theirs_greedy(model, prompt, 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_chunks_of_different_sizes_gives_the_same_logits(family: str) -> None:
    model = make_tiny(family)
    ids = random_ids(model, 60, seed=4)
    decoder = ours(model)
    cache, request = empty_cache(decoder, 60), Request(torch.arange(60))
    for start, end in ((0, 1), (1, 18), (18, 19), (19, 52), (52, 60)):
        step(decoder, cache, prefills=[(request, ids[start:end])])
    torch.testing.assert_close(torch.stack(request.logits), theirs_logits(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "fields"),
    [*((family, {}) for family in FAMILIES), SLIDING["mistral-window-16"], SLIDING["qwen3-window-by-layer"]],
    ids=[*FAMILIES, "window", "window-by-layer"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_requests_of_all_kinds_in_one_step_do_not_touch_each_other(
    family: str, fields: Fields, dtype: torch.dtype
) -> None:
    exact = make_tiny(family, **fields)
    model = in_dtype(exact, dtype)
    torch.nn.Module.load_state_dict(exact, {k: v.float() for k, v in model.state_dict().items()})
    decoder = ours(model)
    cache = empty_cache(decoder, 300)
    pool = torch.split(scattered(280, 300, seed=0), [90, 20, 60, 70, 40])
    fresh, chunked, short, long, late = requests = [Request(slots) for slots in pool]
    texts = [random_ids(model, count, seed=10 + i) for i, count in enumerate((40, 20, 5, 50, 12))]

    step(decoder, cache, prefills=[(short, texts[2][:3]), (long, texts[3][:45]), (chunked, texts[1][:9])])
    step(
        decoder,
        cache,
        prefills=[(fresh, texts[0]), (chunked, texts[1][9:])],
        decodes=[(short, texts[2][3]), (long, texts[3][45])],
    )
    step(decoder, cache, prefills=[(late, texts[4])], decodes=[(long, texts[3][46]), (short, texts[2][4])])
    step(decoder, cache, decodes=[(long, texts[3][47])])
    step(decoder, cache, decodes=[(long, texts[3][48])])
    step(decoder, cache, decodes=[(long, texts[3][49])])

    for request, ids in zip(requests, texts, strict=True):
        found, reference = torch.stack(request.logits), theirs_logits(exact, ids)
        assert request.length == len(ids)
        if dtype is torch.float32:
            torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-4)
        else:
            their_error = (theirs_logits(model, ids) - reference).abs().max()
            assert (found - reference).abs().max() <= 1.5 * their_error


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_wanted_rows_come_back_in_their_order(family: str) -> None:
    model = make_tiny(family)
    decoder = ours(model)
    cache = empty_cache(decoder, 40)
    one, two = Request(torch.arange(20)), Request(torch.arange(20, 40))
    first, second = random_ids(model, 12, seed=1), random_ids(model, 9, seed=2)
    logits = step(decoder, cache, prefills=[(one, first), (two, second)], rows="last")
    reference = torch.stack([theirs_logits(model, first)[-1], theirs_logits(model, second)[-1]])
    torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_that_wants_no_logits_still_fills_the_cache(dtype: torch.dtype) -> None:
    model = in_dtype(make_tiny("llama"), dtype)
    decoder = ours(model)
    silent, loud = empty_cache(decoder, 8), empty_cache(decoder, 8)
    ids = random_ids(model, 8, seed=6)
    logits = step(decoder, silent, prefills=[(Request(torch.arange(8)), ids)], rows="none")
    assert logits.shape == (0, model.config.vocab_size)
    assert logits.dtype is torch.float32
    step(decoder, loud, prefills=[(Request(torch.arange(8)), ids)])
    for written, expected in zip(silent.keys + silent.values, loud.keys + loud.values, strict=True):
        assert torch.equal(written, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_lies_in_a_padding_slot_reaches_nobody(dtype: torch.dtype, poison: float) -> None:
    model = in_dtype(make_tiny("llama"), dtype)
    decoder = ours(model)
    texts = [random_ids(model, count, seed=count) for count in (3, 200)]

    def last_logits(cache: KVCache) -> torch.Tensor:
        short, long = Request(1 + torch.arange(10)), Request(scattered(250, 300, seed=1)[20:] + 100)
        step(decoder, cache, prefills=[(short, texts[0][:-1]), (long, texts[1][:-1])])
        return step(decoder, cache, decodes=[(short, texts[0][-1]), (long, texts[1][-1])], padding_slot=0)

    clean, poisoned = empty_cache(decoder, 500), empty_cache(decoder, 500)
    for tensor in poisoned.keys + poisoned.values:
        tensor[0] = poison
    assert torch.equal(last_logits(poisoned), last_logits(clean))


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_that_go_through_the_layers_side_by_side_give_the_same_bits(family: str) -> None:
    model = make_tiny(family)
    decoder = ours(model)
    ids = random_ids(model, 50, seed=9)
    one_by_one, side_by_side = empty_cache(decoder, 50), empty_cache(decoder, 50)
    request = Request(torch.arange(50), prompt_length=50)
    batches = [batch_of([(request, ids[start:end])])[0] for start, end in ((0, 16), (16, 32), (32, 50))]
    with torch.inference_mode():
        expected = [decoder.forward(batch, one_by_one) for batch in batches]
        passages = [decoder.begin(batch) for batch in batches]
        while passages[-1].logits is None:
            for passage in passages:
                decoder.advance(passage, side_by_side)
    for passage, logits in zip(passages, expected, strict=True):
        assert passage.logits is not None
        assert torch.equal(passage.logits, logits)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_each_group_is_asked_for_before_it_is_read(tied: bool) -> None:
    model = make_tiny("llama", tie_word_embeddings=tied)
    complete = ours(model)
    ids = random_ids(model, 10, seed=8)
    expected = step(complete, empty_cache(complete, 10), prefills=[(Request(torch.arange(10)), ids)])

    layout = layout_of(config_json(model))
    parameters = {spec.name: torch.full(spec.shape, math.nan) for spec in layout.parameters}
    arrived: list[int] = []

    def arrive(group: int) -> None:
        arrived.append(group)
        if group == EMBEDDED_ROWS:
            parameters[layout.embedding][ids] = parameters_of(model)[layout.embedding][ids]
        for spec in layout.parameters:
            if spec.group == group:
                parameters[spec.name].copy_(parameters_of(model)[spec.name])

    loading = DecoderModel(complete.config, parameters)
    cache = empty_cache(loading, 10)
    logits = step(loading, cache, prefills=[(Request(torch.arange(10)), ids)], before_group=arrive)
    assert arrived == [EMBEDDED_ROWS, 0, 1, 2, 3 if tied else 4]
    assert torch.equal(logits, expected)


def test_a_step_without_logits_does_not_ask_for_the_head() -> None:
    decoder = ours(make_tiny("llama"))
    asked: list[int] = []
    request = Request(torch.arange(4))
    ids = [5, 6, 7, 8]
    logits = step(
        decoder, empty_cache(decoder, 4), prefills=[(request, ids)], rows="none", before_group=asked.append
    )
    assert logits.shape == (0, decoder.config.vocab_size)
    assert logits.dtype == torch.float32
    assert asked == [EMBEDDED_ROWS, 0, 1, 2]
