"""The server's numbers as Prometheus' metric families: names, types, labels, help.

The names are SGLang's where it has the metric, with `headrace_` in place of `sglang:`: Prometheus keeps colons for
recording rules. docs/operations.md has the table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.ipc.messages import EngineLoad, LoadProgress, Occupation, Ready
from headrace.server.seen.metrics import Histogram, ServerMetrics
from headrace.server.seen.process_usage import ProcessUsage
from headrace.server.seen.startup_table import TRANSFER, PhaseRow


@dataclass(frozen=True, slots=True)
class State:
    """Everything that one scrape tells.

    Attributes:
        progress: of the load, as it was told last.
        ready: the engine's; None while it loads.
        phases: the start-up table; () while it loads.
        ready_s: when requests could be answered at once, on its clock.
        restarts: engines that were started again.
        weight_changes: outcome → changes of weights or memory that have ended so.
        occupied: what is in the engine's memory.
        load: how busy the engine is.
        serving: requests are answered at once.
        waiting_for_load: requests, or choices of them, that wait for the end of the load.
        context_length: None until the model is known.
        processes: "front" and "engine", as far as the system tells of them.
    """

    metrics: ServerMetrics
    progress: LoadProgress
    ready: Ready | None
    phases: tuple[PhaseRow, ...]
    ready_s: float
    restarts: int
    weight_changes: Mapping[str, int]
    occupied: tuple[Occupation, ...]
    load: EngineLoad
    serving: bool
    waiting_for_load: int
    context_length: int | None
    processes: Mapping[str, ProcessUsage]


def exposition(state: State, accept: str) -> tuple[bytes, str]:
    """The body of a scrape and its content type; `accept` is the client's Accept header."""
    # A registry for each scrape: nothing is global, and nothing is counted in it.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(state))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        yield InfoMetricFamily("headrace", "The server's version.", {"version": __version__})
        yield from _of_start(self._state)
        yield from _of_requests(self._state.metrics)
        yield from _of_engine(self._state)
        yield from _of_processes(self._state.processes)


def _of_start(state: State) -> Iterator[Metric]:
    progress, ready = state.progress, state.ready
    yield _gauge("ready", "1 while requests are answered at once.", int(state.serving))
    yield _counter(
        "engine_restarts", "Engines that were started in the place of one that failed.", state.restarts
    )
    done = progress.bytes_done if ready is None else ready.bytes_streamed
    total = progress.bytes_total if ready is None else ready.bytes_streamed
    yield _counter("load_bytes", "Weight bytes received from the store.", done)
    yield _gauge("load_size_bytes", "Weight bytes that the model has; 0 while unknown.", total)
    yield _counter("load_retries", "Reads of weights that failed and were tried again.", progress.retries)
    yield _counter(
        "load_hedges", "Slow reads of weights that a second connection was put to.", progress.hedges
    )
    connections = progress.concurrency if ready is None else 0
    yield _gauge("load_concurrency", "Connections that read weights at this moment.", connections)
    if ready is None:
        return
    transfer = [row for row in state.phases if row.name == TRANSFER]
    if transfer:
        seconds = transfer[-1].seconds
        yield _gauge(
            "weight_load_duration_seconds", "From the first weight byte asked for to the last one.", seconds
        )
    yield _gauge(
        "startup_time_seconds",
        "From exec, or from the start of an engine that was started again, to ready.",
        state.ready_s,
    )
    phase_seconds = GaugeMetricFamily(
        "headrace_startup_phase_seconds", "How long each phase of the start took.", labels=["phase"]
    )
    phase_ends = GaugeMetricFamily(
        "headrace_startup_phase_end_seconds",
        "When each phase of the start ended, from exec.",
        labels=["phase"],
    )
    hidden = GaugeMetricFamily(
        "headrace_startup_phase_hidden_ratio",
        "Share (0 to 1) of each phase of the start that passed while weights were moving.",
        labels=["phase"],
    )
    for name, rows in _by_name(state.phases).items():
        seconds = sum(row.seconds for row in rows)
        phase_seconds.add_metric([name], seconds)
        phase_ends.add_metric([name], max(row.end_s for row in rows))
        hidden_s = [row.hidden_share * row.seconds for row in rows if row.hidden_share is not None]
        if hidden_s:
            hidden.add_metric([name], sum(hidden_s) / seconds)
    yield phase_seconds
    yield phase_ends
    yield hidden


def _by_name(rows: Iterable[PhaseRow]) -> dict[str, list[PhaseRow]]:
    """A phase may come more than once: a load that began anew."""
    found: dict[str, list[PhaseRow]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found


def _of_requests(metrics: ServerMetrics) -> Iterator[Metric]:
    yield _gauge(
        "http_requests_active", "HTTP requests that are being answered.", metrics.http_requests_active
    )
    responses = CounterMetricFamily(
        "headrace_http_responses",
        "HTTP answers; 499: the client left first.",
        labels=["route", "method", "status"],
    )
    for (route, method, status), count in metrics.responses.items():
        responses.add_metric([route, method, str(status)], count)
    yield responses
    requests = CounterMetricFamily(
        "headrace_num_requests", "Requests for text that have ended.", labels=["route", "outcome"]
    )
    for (route, outcome), count in metrics.requests.items():
        requests.add_metric([route, outcome], count)
    yield requests
    finished = CounterMetricFamily(
        "headrace_finished_choices",
        "Choices that the engine has ended, by OpenAI's reasons.",
        labels=["reason"],
    )
    for reason, count in metrics.finished.items():
        finished.add_metric([reason], count)
    yield finished
    yield _counter("prompt_tokens", "Tokens of prompts, those found in the cache too.", metrics.prompt_tokens)
    yield _counter("cached_tokens", "Tokens of prompts that the prefix cache held.", metrics.cached_tokens)
    yield _counter("generation_tokens", "Tokens made.", metrics.generation_tokens)
    yield _histogram(
        "time_to_first_token_seconds",
        "From a request's arrival to its first token; waiting for the load counts.",
        metrics.time_to_first_token,
    )
    yield _histogram(
        "inter_token_latency_seconds", "Between two tokens of a choice.", metrics.inter_token_latency
    )
    yield _histogram(
        "e2e_request_latency_seconds",
        "From a request's arrival to the last byte of its answer, of those that finished.",
        metrics.request_latency,
    )


def _of_engine(state: State) -> Iterator[Metric]:
    load = state.load
    yield _gauge("num_running_reqs", "Choices that are computed.", load.running)
    yield _gauge(
        "num_queue_reqs",
        "Choices that wait for a place among the running ones, and requests that wait for the load.",
        load.waiting + state.waiting_for_load,
    )
    yield _counter(
        "retracted_reqs", "Choices that lost their places in the KV pool and waited again.", load.retractions
    )
    changes = CounterMetricFamily(
        "headrace_weight_changes",
        "Changes of weights, and of what of them is in memory, that have ended.",
        labels=["outcome"],
    )
    for outcome, count in state.weight_changes.items():
        changes.add_metric([outcome], count)
    yield changes
    if state.context_length is not None:
        yield _gauge("context_len", "Tokens that one request may take.", state.context_length)
    if state.ready is None:
        return
    # In GiB, as SGLang's. What was given back takes nothing.
    weights = state.ready.weights_bytes / (1 << 30) if "weights" in state.occupied else 0.0
    cache = state.ready.kv_cache_bytes / (1 << 30) if "kv_cache" in state.occupied else 0.0
    yield _gauge("weight_memory_usage_gb", "GiB that the weights take.", weights)
    yield _gauge("kv_cache_memory_usage_gb", "GiB that the whole KV pool takes.", cache)
    size = state.ready.max_total_tokens
    yield _gauge("max_total_num_tokens", "Size of the KV pool in tokens.", size)
    yield _gauge("num_used_tokens", "Tokens in the KV pool that running requests hold.", load.kv_used_tokens)
    yield _gauge(
        "kv_evictable_tokens",
        "Tokens in the KV pool that the prefix cache alone holds.",
        load.kv_cached_tokens,
    )
    free = size - load.kv_used_tokens - load.kv_cached_tokens
    yield _gauge("kv_available_tokens", "Tokens for which the KV pool has free places.", free)
    yield _gauge(
        "token_usage", "Share (0 to 1) of the KV pool that running requests hold.", load.kv_used_tokens / size
    )


def _of_processes(processes: Mapping[str, ProcessUsage]) -> Iterator[Metric]:
    columns: tuple[tuple[Metric, Callable[[ProcessUsage], float]], ...] = (
        (
            GaugeMetricFamily(
                "headrace_process_resident_memory_bytes",
                "Memory that a process holds; the engine's has weights and touched KV pages in it.",
                labels=["process"],
            ),
            lambda usage: usage.resident_bytes,
        ),
        (
            CounterMetricFamily("headrace_process_cpu_seconds", "CPU time of a process.", labels=["process"]),
            lambda usage: usage.cpu_s,
        ),
    )
    for family, value in columns:
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        for name, usage in processes.items():
            family.add_metric([name], value(usage))
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    """The name goes without the `_total` that the exposition adds."""
    return CounterMetricFamily(f"headrace_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets: list[tuple[str, float]] = []
    count = 0
    bounds = [*(f"{float(bound)}" for bound in histogram.bounds), "+Inf"]
    for bound, own in zip(bounds, histogram.counts, strict=True):
        count += own
        buckets.append((bound, count))
    return HistogramMetricFamily(f"headrace_{name}", text, buckets=buckets, sum_value=histogram.total)
