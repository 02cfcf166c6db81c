"""From options to an engine that has computed. Weights stream into their final memory while torch is imported, and the
first prompt is computed behind them."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.change.served import Served
from headrace.engine.device import is_apart, set_threads
from headrace.engine.front_log import logged_by_the_front
from headrace.engine.loading.arriving import Arriving
from headrace.engine.loading.checkpoint import eos_token_ids
from headrace.engine.loading.inbox import Inbox
from headrace.engine.loading.load import Load, begin_load
from headrace.engine.loading.load_report import LoadReport, told
from headrace.engine.loading.shared_channel import Channel, SharedChannel
from headrace.engine.loading.torch_import import import_torch
from headrace.engine.loading.while_loading import compute_while_loading
from headrace.ipc.messages import EngineMessage, Ready
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.registry import family_of, forward_class
from headrace.source.uri import parse_source
from headrace.store.base import open_store
from headrace.stream.checkpoint.headers import list_model

if TYPE_CHECKING:
    from headrace.engine.engine import Engine
    from headrace.engine.loading.device_copy import DeviceCopy
    from headrace.models.decoder.arithmetic import Arithmetic


def start(options: EngineOptions, channel: Channel, timeline: Timeline) -> "Engine":
    """Load the model, and compute the first prompt or a warm-up.

    Sends progress, ModelInfo, Accepting, what was computed meanwhile, and Ready; takes requests from Accepting on.
    After that the channel is the caller's alone again.

    Raises:
        HeadraceError: of every kind that the options, the store, the checkpoint or the machine can cause.
        Stopped: the front wanted no more.
    """
    shared = SharedChannel(channel)
    report = LoadReport(shared.send)
    with told(report), logged_by_the_front(shared.send, options.log_level):
        engine, ready = _start_through_changes(options, report, Inbox(shared), timeline)
    channel.send(ready)
    return engine


def _start_through_changes(
    options: EngineOptions, report: LoadReport, inbox: Inbox, timeline: Timeline
) -> tuple["Engine", Ready]:
    """Load once, or once more where the objects change meanwhile and that is wanted."""
    failed_s: float | None = None

    def load() -> "tuple[Engine, Ready]":
        nonlocal failed_s
        if failed_s is not None:
            timeline.add("wait for the end of an upload", failed_s, timeline.now())
        try:
            return _start(options, report, inbox, timeline)
        except BaseException:
            failed_s = timeline.now()
            if report.transfer is not None:
                report.transfer.cancel()
                timeline.add("transfer, given up", failed_s - report.transfer.progress().seconds, failed_s)
            raise

    def let_go() -> None:
        report.transfer, report.phase = None, "waiting for the end of an upload"

    if not options.load_config.restart_on_change:
        return load()
    from headrace.stream.restart import load_through_changes

    store = open_store(parse_source(options.model))
    return load_through_changes(load, lambda: list_model(store), let_go=let_go)


def _start(
    options: EngineOptions, report: LoadReport, inbox: Inbox, timeline: Timeline
) -> tuple["Engine", Ready]:
    load = begin_load(options, report, timeline)
    with timeline.phase("import torch"):
        _import_torch(load)
    with timeline.phase("build model"):
        built = _build(load, options)
    engine = built.engine
    if load.is_dummy:
        with timeline.phase("random weights"):
            _fill_with_noise(load, options)
    arriving = Arriving(load.transfer, load.table, built.copy)
    inbox.hand_over(engine)
    answers = _compute_behind_the_bytes(load, engine, inbox, arriving, timeline)
    if built.copy is not None:
        with timeline.phase("copy to device"):
            built.copy.copy_rest()
    # Not before: every byte is in place and proved.
    for answer in answers:
        report.send(answer)
    inbox.close(engine)
    if not answers and not options.skip_server_warmup:
        report.phase = "warming up"
        with timeline.phase("warm up"):
            engine.warm_up()
    return engine, _ready(load, timeline, built)


@dataclass(frozen=True, slots=True)
class _Built:
    """A model around memory that is filling.

    Attributes:
        copy: where its parameters are those of a device of its own.
        threads, kernels: what computes, in words; "" where that is not the CPU.
    """

    engine: "Engine"
    copy: "DeviceCopy | None"
    threads: str = ""
    kernels: str = ""


def _import_torch(load: Load) -> None:
    """All that is needed from here on, so that the time which that takes is told in one place."""
    import_torch()
    for name in (
        "headrace.engine.loading.memory_views",
        "headrace.engine.loading.device_copy",
        "headrace.engine.engine",
    ):
        importlib.import_module(name)
    forward_class(load.checkpoint.config)


def _build(load: Load, options: EngineOptions) -> _Built:
    import torch

    from headrace.engine.engine import Engine
    from headrace.engine.loading import memory_views
    from headrace.engine.loading.device_copy import DeviceCopy

    threads = set_threads()
    device = torch.device(load.device)
    parameters = memory_views.wrap_parameters(load.arena, load.arena_plan)
    copy = None
    if is_apart(load.device):
        copy = DeviceCopy(parameters, load.arena_plan.slots, load.layout.embedding, device)
        parameters = copy.parameters
    model = forward_class(load.checkpoint.config)(load.config, parameters, _arithmetic(options))
    cache = memory_views.make_cache(
        load.config.num_layers,
        load.memory.pool_tokens,
        load.config.num_kv_heads,
        load.config.head_dim,
        model.dtype,
        device,
    )
    engine = Engine(
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
            arena=load.arena if copy is None else None,
            parameters=parameters,
            cache=cache,
        ),
    )
    if device.type != "cpu":
        return _Built(engine, copy)
    return _Built(engine, copy, f", {threads} threads", model.computed_by)


def _fill_with_noise(load: Load, options: EngineOptions) -> None:
    from headrace.engine.loading import memory_views

    parameters = memory_views.wrap_parameters(load.arena, load.arena_plan)
    memory_views.fill_with_noise(parameters, options.random_seed or 0)


def _compute_behind_the_bytes(
    load: Load, engine: "Engine", inbox: Inbox, arriving: Arriving, timeline: Timeline
) -> list[EngineMessage]:
    """What was computed meanwhile; returns when every byte is in place and proved."""
    begun_s = timeline.now()
    try:
        answers = compute_while_loading(engine, inbox, arriving, load.transfer, timeline)
        load.transfer.wait()
    finally:
        if load.verifier is not None:
            load.verifier.close()
    timeline.add("wait for weights", begun_s, max(begun_s, load.ended_s))
    if not load.is_dummy:
        timeline.add("transfer", load.begun_s, load.ended_s)
    return answers


def _ready(load: Load, timeline: Timeline, built: _Built) -> Ready:
    checkpoint, memory = load.checkpoint, load.memory
    return Ready(
        max_total_tokens=memory.pool_tokens,
        bytes_streamed=load.bytes_total,
        phases=timeline.phases(),
        summary=(
            f"Model {checkpoint.where}: {family_of(checkpoint.config)}, {load.arena_plan.dtype} on {load.device}"
            f"{built.threads}, context {load.context_length:,} tokens",
            *([f"Computed by {built.kernels}"] if built.kernels else []),
            *([load.verifier.summary().describe()] if load.verifier is not None else []),
        ),
        memory=memory.describe(),
        weights_bytes=memory.weights_bytes,
        kv_cache_bytes=memory.kv_cache_bytes,
    )


def _arithmetic(options: EngineOptions) -> "Arithmetic":
    if options.enable_deterministic_inference:
        from headrace.models.decoder.invariant import ROW_INVARIANT

        return ROW_INVARIANT
    from headrace.models.decoder.arithmetic import FASTEST

    return FASTEST
