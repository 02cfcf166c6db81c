"""What the options ask for, joined with a model's config: how long a request may be, how much memory it all takes."""

from dataclasses import replace

from headrace.engine.loading.weights import ArenaPlan
from headrace.engine.memory import Demand, Device, MemoryPlan, machine_memory_bytes, plan_memory
from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.models.decoder.config import DecoderConfig
from headrace.stream.library.memory_room import Room, memory_room

# What the engine takes beside weights and KV cache: torch and what it allocates of its own, buffers of the transfer, a
# step's intermediate values. Measured: docs/operations.md.
CPU_WORKING_BYTES = 384 << 20


class BadContextLength(HeadraceError):
    """--context-length asks for more than the model can do."""


def choose_context_length(options: EngineOptions, config: DecoderConfig) -> int:
    """Tokens that one request may take. Raises BadContextLength."""
    own = config.context_length
    if options.context_length is None:
        return own
    if options.context_length > own:
        raise BadContextLength(
            f"--context-length {options.context_length} is more than the model's own {own} "
            "(max_position_embeddings in config.json, with its rotary scaling).",
            remedy=f"Use {own} or less.",
        )
    return options.context_length


def plan_device_memory(
    options: EngineOptions,
    config: DecoderConfig,
    arena: ArenaPlan,
    context_length: int,
    device_name: str,
    *,
    room: Room | None = None,
) -> MemoryPlan:
    """The plan for "cpu" or "cuda"; imports torch for the latter. Raises NotEnoughMemory.

    Args:
        room: what can be had; None asks the system what it is at this moment.
    """
    device = _cpu() if device_name == "cpu" else _gpu()
    if room is not None:
        device = replace(device, room=room)
    item_bytes = 4 if arena.dtype == "float32" else 2
    demand = Demand(
        weights_bytes=arena.size_bytes,
        bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * item_bytes,
        context_length=context_length,
        page_size=options.page_size,
        max_running_requests=options.max_running_requests,
        max_total_tokens=options.max_total_tokens,
    )
    return plan_memory(device, options.mem_fraction_static, demand)


def _cpu() -> Device:
    return Device("the CPU", machine_memory_bytes(), memory_room(), CPU_WORKING_BYTES)


def _gpu() -> Device:
    import torch

    free, total = torch.cuda.mem_get_info()
    return Device(torch.cuda.get_device_name(), total, Room(free, "what else is on it"))
