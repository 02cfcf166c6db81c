"""What the options ask for, joined with a model's config: how long a request may be, how much memory it all takes."""

from headrace.engine.memory import MemoryPlan, machine_memory_bytes, plan_memory
from headrace.engine.weights import ArenaPlan
from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.models.decoder.config import DecoderConfig


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
    options: EngineOptions, config: DecoderConfig, arena: ArenaPlan, context_length: int, device_name: str
) -> MemoryPlan:
    """The plan for a device by its name; imports torch for "cuda". Raises NotEnoughMemory."""
    if device_name == "cpu":
        name, total = "the CPU", machine_memory_bytes()
    else:
        import torch

        name, total = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
    item_bytes = 4 if arena.dtype == "float32" else 2
    return plan_memory(
        device=name,
        total_bytes=total,
        fraction=options.mem_fraction_static,
        weights_bytes=arena.size_bytes,
        bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * item_bytes,
        context_length=context_length,
        page_size=options.page_size,
        max_running_requests=options.max_running_requests,
        max_total_tokens=options.max_total_tokens,
    )
