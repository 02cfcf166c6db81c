"""What `headrace serve` was asked for: the front's own flags and the engine's."""

from typing import Literal

import msgspec

from headrace.ipc.options import EngineOptions

LogFormat = Literal["text", "json"]
DEFAULT_WEIGHT_VERSION = "default"


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked flags of `headrace serve` and `launch_server`.

    Attributes:
        served_model_name: the `id` in /v1/models and the `model` that requests must name.
        weight_version: a name for the weights that are loaded first, told by /model_info.
        api_key: bearer token that every route but /health, /ping, /ready and /metrics asks for; None asks for none.
        chat_template: a Jinja template file that replaces the model's own, or None.
        sampling_defaults: "model" takes generation_config.json's temperature, top_p, top_k, min_p and
            repetition_penalty where a request gives none; "openai" does not.
        enable_cache_report: usage tells how many prompt tokens were found in the prefix cache.
        engine_restarts: how often in a row a failed engine is started again; 0 ends the server with its engine.
        watchdog_timeout_s: an engine that has work and is silent for so long is ended; 0 never does so.
        queue_while_loading: requests wait for the end of the load, instead of being answered 503.
        queue_timeout_s: how long they wait at the most.
        enable_trace: send OpenTelemetry traces.
        otlp_traces_endpoint: the URL that takes them over OTLP/HTTP; None goes by the SDK's own variables.
        max_body_bytes: larger request bodies are answered 413.
        log_format: lines for a person, or JSON objects for a program.
        notes: one line each for flags that are accepted and have no effect here; printed at start.
    """

    engine: EngineOptions
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 30000
    weight_version: str = DEFAULT_WEIGHT_VERSION
    api_key: str | None = None
    chat_template: str | None = None
    sampling_defaults: str = "model"
    enable_cache_report: bool = False
    shutdown_timeout_s: float = 30.0
    engine_restarts: int = 3
    watchdog_timeout_s: float = 300.0
    queue_while_loading: bool = True
    queue_timeout_s: float = 600.0
    enable_trace: bool = False
    otlp_traces_endpoint: str | None = None
    max_body_bytes: int = 16 << 20
    log_level: str = "info"
    log_format: LogFormat = "text"
    notes: tuple[str, ...] = ()
