"""Which checkpoint bytes go where in the arena: layout and headers joined. Pure, no torch."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.models.layout import Layout
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, TensorInfo
from headrace.stream.convert import check_convertible
from headrace.stream.plan import Placement

# Kernels run on a parameter as on torch's own memory when it starts at a multiple of this.
ALIGNMENT_BYTES = 64
SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SHOWN = 8


class WrongTensors(HeadraceError):
    """The checkpoint's tensors are not those that its config.json calls for."""

    def __init__(self, where: str, facts: list[str]) -> None:
        super().__init__(
            f"{where}: the tensors do not fit config.json. {' '.join(facts)}",
            remedy="Upload config.json and weights of one and the same checkpoint.",
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies in the arena.

    Attributes:
        offset, size_bytes: its bytes; the offset is a multiple of ALIGNMENT_BYTES.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    group: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """All parameters, one after another in load order.

    Attributes:
        dtype: torch's name of the model's dtype, e.g. "bfloat16".
    """

    slots: tuple[Slot, ...]
    size_bytes: int
    dtype: str


def plan_arena(layout: Layout, dtype: str) -> ArenaPlan:
    """Give each parameter its place."""
    item_bytes = DTYPE_BITS[SAFETENSORS_NAMES[dtype]] // 8
    slots: list[Slot] = []
    end = 0
    for parameter in layout.parameters:
        size = math.prod(parameter.shape) * item_bytes
        slots.append(Slot(parameter.name, parameter.shape, end, size, parameter.group))
        end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return ArenaPlan(tuple(slots), end, dtype)


def place_tensors(layout: Layout, arena: ArenaPlan, shards: Sequence[Shard], where: str) -> list[Placement]:
    """Where each tensor of the checkpoint goes.

    Raises:
        WrongTensors: a tensor is missing, unexpected, mis-shaped or in two shards; all are named (up to 8).
        CannotConvert: a tensor's dtype cannot be made the model's.
    """
    found = _collect(shards, where)
    ignored = [re.compile(pattern) for pattern in layout.ignored]
    wanted = {source.name for parameter in layout.parameters for source in parameter.sources}
    missing = sorted(wanted - found.keys())
    unexpected = sorted(
        name for name in found.keys() - wanted if not any(pattern.fullmatch(name) for pattern in ignored)
    )
    mis_shaped = [
        f"{source.name} {list(found[source.name][1].shape)} (config.json: {list(source.shape)})"
        for parameter in layout.parameters
        for source in parameter.sources
        if source.name in found and found[source.name][1].shape != source.shape
    ]
    facts = [
        f"{title}: {_shown(names)}."
        for title, names in (
            ("Missing", missing),
            ("Unexpected", unexpected),
            ("Of another shape", mis_shaped),
        )
        if names
    ]
    if facts:
        raise WrongTensors(where, facts)
    dtype = SAFETENSORS_NAMES[arena.dtype]
    placements: list[Placement] = []
    for parameter, slot in zip(layout.parameters, arena.slots, strict=True):
        destination = slot.offset
        for source in parameter.sources:
            shard, tensor = found[source.name]
            check_convertible(tensor.name, tensor.dtype, dtype)
            placements.append(
                Placement(shard, tensor.start, tensor.end, destination, parameter.group, tensor.dtype, dtype)
            )
            destination += math.prod(source.shape) * DTYPE_BITS[dtype] // 8
        assert destination == slot.offset + slot.size_bytes
    return placements


def _collect(shards: Sequence[Shard], where: str) -> dict[str, tuple[int, TensorInfo]]:
    found: dict[str, tuple[int, TensorInfo]] = {}
    twice: list[str] = []
    for number, shard in enumerate(shards):
        for name, tensor in shard.tensors.items():
            if name in found:
                twice.append(f"{name} (in {shards[found[name][0]].item.name} and {shard.item.name})")
            found[name] = (number, tensor)
    if twice:
        raise WrongTensors(where, [f"In two shards: {_shown(twice)}."])
    return found


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
