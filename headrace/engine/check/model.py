"""Can it be served: architecture, tensors, tokenizer, memory? From small files and headers; no torch on a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.check.files import Files
from headrace.engine.check.finding import Finding, Findings, fail, ok, tried, warn
from headrace.engine.device import choose_device, choose_dtype
from headrace.engine.loading.checkpoint import fetch_tokenizer, parse_json_object
from headrace.engine.loading.weights import place_tensors, plan_arena
from headrace.engine.memory import NotEnoughMemory
from headrace.engine.sizing import choose_context_length, plan_device_memory
from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.models.registry import family_of, layout_of, read_config
from headrace.source.files import CONFIG_NAME, is_tokenizer_file
from headrace.stream.checkpoint.header import Shard
from headrace.stream.library.memory_room import Room, memory_room

# As if nothing else took memory: a check may run beside the server that is to be replaced.
_UNBOUNDED = Room(1 << 62, "")


@dataclass(frozen=True, slots=True)
class Load:
    """What would be loaded.

    Attributes:
        bytes_to_read: of the objects.
    """

    bytes_to_read: int


def check_model(options: EngineOptions, where: str, files: Files) -> Findings[Load | None]:
    """Architecture, tensors, tokenizer and memory."""
    config = yield from tried(
        "architecture", lambda: parse_json_object(files.metadata[CONFIG_NAME], f"{where}/{CONFIG_NAME}")
    )
    if config is None:
        return None
    yield from _check_tokenizer(options, config, files.metadata)
    return (yield from _check_weights(options, where, config, files.shards))


def _check_weights(
    options: EngineOptions, where: str, config: Mapping[str, Any], shards: Sequence[Shard]
) -> Findings[Load | None]:
    held = [name for shard in shards for name in shard.tensors]
    read = yield from tried("architecture", lambda: read_config(config, held))
    if read is None:
        return None
    context_length = yield from tried("architecture", lambda: choose_context_length(options, read))
    if context_length is None:
        return None
    family = family_of(config)
    yield ok(
        "architecture",
        f"{family}: {read.num_layers} layers, context {context_length:,} tokens.",
        family=family,
        layers=read.num_layers,
        context_length=context_length,
    )
    layout = layout_of(config, held)
    dtype = choose_dtype(options, config, shards)
    arena = plan_arena(layout, dtype)
    placements = yield from tried("tensors", lambda: place_tensors(layout, arena, shards, where))
    if placements is None:
        return None
    to_read = sum(each.end - each.start for each in placements)
    others = sorted({each.source_dtype for each in placements if each.source_dtype != each.dtype})
    converted = f", converted on the way from {' and '.join(others)}" if others else ""
    yield ok(
        "tensors",
        f"All that config.json calls for is there, {to_read:,} bytes to read; it runs in {dtype}{converted}.",
        bytes_to_read=to_read,
        dtype=dtype,
    )
    yield from _check_memory(options, read, arena, context_length)
    return Load(to_read)


def _check_memory(options: EngineOptions, config: Any, arena: Any, context_length: int) -> Findings[None]:
    device = yield from tried("memory", lambda: choose_device(options))
    if device is None:
        return
    plan = yield from tried(
        "memory",
        lambda: plan_device_memory(options, config, arena, context_length, device, room=_UNBOUNDED),
    )
    if plan is None:
        return
    room = memory_room()
    facts = {
        "device": plan.device.name,
        "total_bytes": plan.device.total_bytes,
        "weights_bytes": plan.weights_bytes,
        "kv_tokens": plan.pool_tokens,
        "kv_bytes": plan.kv_cache_bytes,
        "free_bytes": room.size_bytes,
    }
    if device == "cpu":
        try:
            plan = plan_device_memory(options, config, arena, context_length, device, room=room)
        except NotEnoughMemory as error:
            yield warn(
                "memory", f"{plan.describe()}. But at this moment: {error.message}", error.remedy, **facts
            )
            return
    yield ok("memory", f"{plan.describe()}.", **facts)


def _check_tokenizer(
    options: EngineOptions, config: Mapping[str, Any], metadata: Mapping[str, bytes]
) -> Findings[None]:
    path = options.tokenizer_path
    files: Mapping[str, bytes] | None = {
        name: content for name, content in metadata.items() if is_tokenizer_file(name)
    }
    if path is not None:
        files = yield from tried("tokenizer", lambda: fetch_tokenizer(path))
    if files is None:
        return
    yield _read_tokenizer(files, config)


def _read_tokenizer(files: Mapping[str, bytes], config: Mapping[str, Any]) -> Finding:
    from headrace.text.chat_template import ChatTemplate
    from headrace.text.tokenizer import Tokenizer

    model_type = config.get("model_type")
    try:
        tokenizer = Tokenizer.from_files(
            files, model_type=model_type if isinstance(model_type, str) else None
        )
        template = ChatTemplate.from_files(files)
    except HeadraceError as error:
        return fail("tokenizer", error)
    facts = {"tokens": tokenizer.vocab_size, "chat_template": template is not None}
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and tokenizer.vocab_size > vocabulary:
        return warn(
            "tokenizer",
            f"It has {tokenizer.vocab_size:,} tokens, config.json's vocab_size is {vocabulary:,}.",
            "Upload the tokenizer that belongs to the weights.",
            **facts,
        )
    if template is None:
        return warn(
            "tokenizer",
            f"{tokenizer.vocab_size:,} tokens, but no chat template: /v1/chat/completions is refused.",
            "Give one with `headrace serve --chat-template FILE`, or use /v1/completions.",
            **facts,
        )
    return ok("tokenizer", f"{tokenizer.vocab_size:,} tokens, with a chat template.", **facts)
