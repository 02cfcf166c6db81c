"""From options to a warm engine. Weights stream into their final memory while torch is imported."""

import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.engine.checkpoint import Checkpoint, decode_text, eos_token_ids, open_checkpoint
from headrace.engine.device import BadDevice, choose_device, choose_dtype, set_threads
from headrace.engine.front_log import logged_by_the_front
from headrace.engine.load_settings import load_settings
from headrace.engine.memory import MemoryPlan
from headrace.engine.served import Served
from headrace.engine.sizing import choose_context_length, plan_device_memory
from headrace.engine.weights import ArenaPlan, place_tensors, plan_arena
from headrace.ipc.messages import EngineMessage, LoadProgress, ModelInfo, Ready
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.decoder.config import DecoderConfig
from headrace.models.registry import family_of, forward_class, layout_of, read_config
from headrace.source.files import CONFIG_NAME, GENERATION_CONFIG_NAME, MANIFEST_NAME
from headrace.source.uri import parse_source
from headrace.store.base import open_store
from headrace.stream.arena import Arena
from headrace.stream.checkpoint.headers import list_model
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, ReadPlan, plan_reads
from headrace.stream.transfer.staging import DEFAULT_STAGING_BYTES
from headrace.stream.transfer.transfer import Transfer
from headrace.stream.variables import StreamSettings

if TYPE_CHECKING:
    from headrace.engine.engine import Engine
    from headrace.models.decoder.arithmetic import Arithmetic
    from headrace.stream.verify.verifier import BlockVerifier

_PROGRESS_EVERY_S = 0.2
Send = Callable[[EngineMessage], None]


@dataclass(slots=True)
class _Report:
    """What the progress thread tells the front."""

    send: Send
    phase: str = "listing"
    transfer: Transfer | None = None

    def message(self) -> LoadProgress:
        if self.transfer is None:
            return LoadProgress(self.phase)
        now = self.transfer.progress()
        return LoadProgress(
            self.phase, now.bytes_done, now.bytes_total, now.retries, now.hedges, now.concurrency
        )


def start(options: EngineOptions, send: Send, timeline: Timeline) -> "Engine":
    """Load the model and warm it up; sends progress, ModelInfo and Ready.

    Raises:
        HeadraceError: of every kind that the options, the store, the checkpoint or the machine can cause.
    """
    lock = threading.Lock()

    def send_alone(message: EngineMessage) -> None:
        with lock:  # several threads share a channel that is not thread-safe
            send(message)

    report = _Report(send_alone)
    stop = threading.Event()
    reporter = threading.Thread(target=_report_until, args=(stop, report), name="progress", daemon=True)
    reporter.start()
    try:
        with logged_by_the_front(send_alone, options.log_level):
            engine, ready = _start_through_changes(options, report, timeline)
    finally:
        # From here on the channel belongs to the engine's own thread.
        stop.set()
        reporter.join()
        # The last counts of bytes and retries, which may be younger than the reporter's last look.
        send(report.message())
    send(ready)
    return engine


def _start_through_changes(
    options: EngineOptions, report: _Report, timeline: Timeline
) -> tuple["Engine", Ready]:
    """Load once, or once more where the objects change meanwhile and that is wanted."""

    def load() -> "tuple[Engine, Ready]":
        try:
            return _start(options, report, timeline)
        except BaseException:
            if report.transfer is not None:
                report.transfer.cancel()
            raise

    def let_go() -> None:
        report.transfer, report.phase = None, "waiting for the end of an upload"

    if not options.load_config.restart_on_change:
        return load()
    from headrace.stream.restart import load_through_changes

    store = open_store(parse_source(options.model))
    return load_through_changes(load, lambda: list_model(store), let_go=let_go)


def _report_until(stop: threading.Event, report: _Report) -> None:
    last: LoadProgress | None = None
    while not stop.wait(_PROGRESS_EVERY_S if last else 0):
        message = report.message()
        if message != last:
            report.send(message)
            last = message


@dataclass(frozen=True, slots=True)
class _Load:
    """A load under way.

    Attributes:
        begun_s: the timeline's time when its transfer began.
    """

    checkpoint: Checkpoint
    config: DecoderConfig
    context_length: int
    device: str
    memory: MemoryPlan
    arena_plan: ArenaPlan
    arena: Arena
    transfer: Transfer
    verifier: "BlockVerifier | None"
    bytes_total: int
    begun_s: float

    @property
    def is_dummy(self) -> bool:
        """Nothing is read: the weights are random."""
        return not self.checkpoint.shards


def _begin(options: EngineOptions, report: _Report, timeline: Timeline) -> _Load:
    """Open the checkpoint, plan, and start reading; without torch."""
    settings = load_settings(options.load_config)
    checkpoint = open_checkpoint(options, timeline)
    # Random weights have no file that could hold a head of its own.
    held = [name for shard in checkpoint.shards for name in shard.tensors] or None
    config = read_config(checkpoint.config, held)
    context_length = choose_context_length(options, config)
    layout = layout_of(checkpoint.config, held)
    arena_plan = plan_arena(layout, choose_dtype(options, checkpoint.config, checkpoint.shards))
    dummy = options.load_format == "dummy"
    placements = [] if dummy else place_tensors(layout, arena_plan, checkpoint.shards, checkpoint.where)
    report.send(_model_info(checkpoint, config, context_length))

    device = choose_device(options)
    if options.enable_deterministic_inference and device != "cpu":
        raise BadDevice(
            "--enable-deterministic-inference: on a GPU nothing shows yet that a text is the same in any company.",
            remedy="Use --device cpu, or leave the flag away.",
        )
    memory = plan_device_memory(options, config, arena_plan, context_length, device)
    arena = Arena(arena_plan.size_bytes)
    plan = plan_reads(placements, settings.chunk_bytes or DEFAULT_CHUNK_BYTES)
    verifier = None if dummy else _verifier(options, checkpoint)
    transfer = _start_transfer(settings, checkpoint, plan, arena, verifier)
    report.transfer, report.phase = transfer, "streaming weights"
    return _Load(
        checkpoint,
        config,
        context_length,
        device,
        memory,
        arena_plan,
        arena,
        transfer,
        verifier,
        plan.bytes_total,
        timeline.now(),
    )


def _start(options: EngineOptions, report: _Report, timeline: Timeline) -> tuple["Engine", Ready]:
    load = _begin(options, report, timeline)
    with timeline.phase("import torch"), _uncollected():
        importlib.import_module("torch")
        views: Any = importlib.import_module("headrace.engine.memory_views")
        model_class = forward_class(load.checkpoint.config)
        arithmetic = _arithmetic(options)
        parts: Any = importlib.import_module("headrace.kernels.native.parts")
        engine_module = importlib.import_module("headrace.engine.engine")
        import torch
    with timeline.phase("build model"):
        threads = set_threads()
        device = torch.device(load.device)
        parameters = views.wrap_parameters(load.arena, load.arena_plan)
        if load.device == "cpu":
            model = model_class(load.config, parameters, arithmetic)
        cache = views.make_cache(
            load.config.num_layers,
            load.memory.pool_tokens,
            load.config.num_kv_heads,
            load.config.head_dim,
            views.torch_dtype(load.arena_plan.dtype),
            device,
        )
    if load.is_dummy:
        with timeline.phase("random weights"):
            views.fill_with_noise(parameters, options.random_seed or 0)
    _await_weights(load, timeline)
    if load.device != "cpu":
        with timeline.phase("copy to device"):
            parameters = {name: tensor.to(device) for name, tensor in parameters.items()}
            model = model_class(load.config, parameters, arithmetic)
    report.phase = "warming up"
    engine: Engine = engine_module.Engine(
        model=model,
        cache=cache,
        options=options,
        pool_tokens=load.memory.pool_tokens,
        eos_token_ids=eos_token_ids(load.checkpoint),
        device=device,
        served=Served(
            model=options.model,
            family=family_of(load.checkpoint.config),
            config=load.config,
            context_length=load.context_length,
            items=tuple(shard.item for shard in load.checkpoint.shards),
            arena_plan=load.arena_plan,
            arena=load.arena if load.device == "cpu" else None,
            parameters=parameters,
            cache=cache,
        ),
    )
    if not options.skip_server_warmup:
        with timeline.phase("warm up"):
            engine.warm_up()
    computes = (f", {threads} threads", parts.describe(model.dtype)) if load.device == "cpu" else ("", "")
    return engine, _ready(load, timeline, *computes)


def _await_weights(load: _Load, timeline: Timeline) -> None:
    with timeline.phase("wait for weights"):
        try:
            load.transfer.wait()
        finally:
            if load.verifier is not None:
                load.verifier.close()
    if not load.is_dummy:
        timeline.add("transfer", load.begun_s, load.begun_s + load.transfer.progress().seconds)


def _ready(load: _Load, timeline: Timeline, threads: str, kernels: str) -> Ready:
    """Args: threads, kernels: what computes, in words; "" where that is not the CPU."""
    checkpoint, memory = load.checkpoint, load.memory
    return Ready(
        max_total_tokens=memory.pool_tokens,
        bytes_streamed=load.bytes_total,
        phases=timeline.phases(),
        summary=(
            f"Model {checkpoint.where}: {family_of(checkpoint.config)}, {load.arena_plan.dtype} on {load.device}"
            f"{threads}, context {load.context_length:,} tokens",
            *([f"Computed by {kernels}"] if kernels else []),
            memory.describe(),
            *([load.verifier.summary().describe()] if load.verifier is not None else []),
        ),
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.pool_tokens * memory.bytes_per_token,
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection while torch's modules come: it takes a tenth of a second and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _arithmetic(options: EngineOptions) -> "Arithmetic":
    if options.enable_deterministic_inference:
        from headrace.models.decoder.invariant import ROW_INVARIANT

        return ROW_INVARIANT
    from headrace.models.decoder.arithmetic import FASTEST

    return FASTEST


def _model_info(checkpoint: Checkpoint, config: DecoderConfig, context_length: int) -> ModelInfo:
    def text_of(name: str) -> str:
        return decode_text(checkpoint.files.get(name, b""), f"{checkpoint.where}/{name}")

    return ModelInfo(
        config=text_of(CONFIG_NAME),
        generation_config=text_of(GENERATION_CONFIG_NAME),
        tokenizer_files=dict(checkpoint.tokenizer_files),
        context_length=context_length,
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids(checkpoint),
    )


def _verifier(options: EngineOptions, checkpoint: Checkpoint) -> "BlockVerifier | None":
    mode = options.load_config.verify or "manifest"
    if mode == "off":
        return None
    from headrace.stream.verify.sums import verifier_of

    return verifier_of(mode, checkpoint.store, checkpoint.shards, checkpoint.files.get(MANIFEST_NAME))


def _start_transfer(
    settings: StreamSettings,
    checkpoint: Checkpoint,
    plan: ReadPlan,
    arena: Arena,
    verifier: "BlockVerifier | None",
) -> Transfer:
    limit = settings.memory_limit
    return Transfer(
        plan,
        [shard.item for shard in checkpoint.shards],
        checkpoint.store,
        arena.view,
        concurrency=settings.concurrency,
        readers=checkpoint.pool.take_readers(),
        verifier=verifier,
        staging_bytes=DEFAULT_STAGING_BYTES if limit is None else limit if limit >= 0 else None,
    )
