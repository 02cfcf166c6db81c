"""Decoding requests are grouped so that none is padded far beyond its own length."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.decoder import step as steps
from headrace.models.decoder.groups import CHEAP_PADDING, group_lengths
from tests.models.harness import Request, empty_cache, ours, step, theirs_logits
from tests.tiny_models import make_tiny, random_ids


@given(st.lists(st.integers(1, 100_000), max_size=40))
def test_every_request_is_in_one_group_and_padded_at_most_to_twice_its_length(lengths: list[int]) -> None:
    groups = group_lengths(lengths)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert all(longest <= max(2 * lengths[index], lengths[index] + CHEAP_PADDING) for index in group)


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=64))
def test_there_are_few_groups_however_many_requests(lengths: list[int]) -> None:
    """Each begins below half the one before."""
    assert len(group_lengths(lengths)) <= 12


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([7], [[0]]),
        ([30, 40], [[1, 0]]),
        ([100, 6000, 100], [[1], [0, 2]]),
        ([3000, 1400, 1600, 90], [[0, 2], [1], [3]]),
    ],
)
def test_the_longest_come_first(lengths: list[int], expected: list[list[int]]) -> None:
    assert group_lengths(lengths) == expected


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"max_position_embeddings": 4096}),
        # One group in the layers that slide, several in the others.
        (
            "qwen3",
            {
                "max_position_embeddings": 4096,
                "use_sliding_window": True,
                "sliding_window": 600,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
        ),
    ],
    ids=["full", "sliding"],
)
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
def test_requests_in_different_groups_keep_their_rows(
    family: str, fields: dict[str, Any], kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(steps, "fastest_way", lambda *_: None)
    model = make_tiny(family, **fields)
    decoder = ours(model)
    counts = [5, 1300, 40, 2700, 620]
    assert len(group_lengths(counts)) > 1
    total = sum(counts) + len(counts)
    cache = empty_cache(decoder, total)
    # In no order: a request's slots are no neighbours.
    slots = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    pool = torch.split(slots, [count + 1 for count in counts])
    requests = [Request(own) for own in pool]
    texts = [random_ids(model, count + 1, seed=count) for count in counts]
    for request, ids in zip(requests, texts, strict=True):
        step(decoder, cache, prefills=[(request, ids[:-1])], rows="none")
    logits = step(decoder, cache, decodes=[(r, ids[-1]) for r, ids in zip(requests, texts, strict=True)])
    expected = torch.stack([theirs_logits(model, ids)[-1] for ids in texts])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
