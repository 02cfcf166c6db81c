"""What an engine serves: which checkpoint, of which shape, in which memory. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.loading.weights import ArenaPlan
from headrace.models.decoder.config import DecoderConfig
from headrace.source.objects import ObjectInfo
from headrace.stream.arena import Arena

if TYPE_CHECKING:
    import torch

    from headrace.models.batch import KVCache


@dataclass(frozen=True, slots=True)
class Served:
    """The weights that are served, with their memory and the KV cache's.

    Attributes:
        model: a URI or a folder, as the user wrote it.
        family: the folder of its family.
        context_length: tokens that one request may take, as the front was told.
        items: the weights' objects as they were listed; () where the weights are random.
        arena: where the parameters lie, on the CPU; None on a device of its own.
        parameters: by the layout's names.
    """

    model: str
    family: str
    config: DecoderConfig
    context_length: int
    items: tuple[ObjectInfo, ...]
    arena_plan: ArenaPlan
    arena: Arena | None
    parameters: "Mapping[str, torch.Tensor]"
    cache: "KVCache"

    @property
    def is_random(self) -> bool:
        """--load-format dummy: nothing was read."""
        return not self.items
