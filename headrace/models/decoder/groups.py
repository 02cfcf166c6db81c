"""Decoding requests in groups of similar length.

Attention over a group pads every request to the group's longest: one long request beside ten short ones would
make each of the short ones as costly as itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.models.batch import ForwardBatch
from headrace.models.decoder.arithmetic import Arithmetic, Attend

# Padding of fewer slots than this costs less than a group of its own (measured: two CPU cores, SmolLM2's shape).
CHEAP_PADDING = 512


@dataclass(frozen=True, slots=True)
class Decodes:
    """The decoding requests of a step for one window size.

    Attributes:
        count: how many requests, which are the last rows of the step.
        groups: how many requests each group has, and its attention.
        order: int64 [count], the requests group after group; None where that is the order they are in.
        places: int64 [count], where each request is found in `order`; None where `order` is.
    """

    count: int
    groups: tuple[tuple[int, Attend], ...]
    order: torch.Tensor | None
    places: torch.Tensor | None


def group_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `lengths` in groups, in each of which no padding is long: longest first."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not groups or longest - lengths[index] > max(lengths[index], CHEAP_PADDING):
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


def group_decodes(
    batch: ForwardBatch, arithmetic: Arithmetic, dtype: torch.dtype, window: int | None
) -> Decodes | None:
    """The batch's decoding requests for a model of this `dtype`; None without any."""
    slots, lengths = batch.decode_slots, batch.decode_lengths
    count = slots.shape[0]
    if not count:
        return None
    # On a GPU, looking at the lengths would wait for it.
    known = lengths.tolist() if count > 1 and slots.device.type == "cpu" else []
    groups = group_lengths(known if window is None else [min(length, window) for length in known])
    if len(groups) <= 1:
        return Decodes(count, ((count, arithmetic.decode(slots, lengths, dtype, window)),), None, None)
    attends: list[tuple[int, Attend]] = []
    for group in groups:
        rows = torch.tensor(group)
        longest = max(known[row] for row in group)
        attends.append((len(group), arithmetic.decode(slots[rows, :longest], lengths[rows], dtype, window)))
    order = torch.tensor([row for group in groups for row in group])
    return Decodes(count, tuple(attends), order, order.argsort())


def attend_decodes(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decodes: Decodes
) -> torch.Tensor:
    """query [count, heads, head_dim] over one layer's cache; gives [count, heads * head_dim]."""
    if decodes.order is None or decodes.places is None:
        _, attend = decodes.groups[0]
        return attend(query, keys, values)
    queries = torch.split(query[decodes.order], [rows for rows, _ in decodes.groups])
    parts = [attend(part, keys, values) for part, (_, attend) in zip(queries, decodes.groups, strict=True)]
    return torch.cat(parts)[decodes.places]
