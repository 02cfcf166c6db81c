"""The flags of `headrace serve`: names and meanings are SGLang's, the last group is our own.

A flag that is not given stays None, so that its default lives in one place: the options' own definition.
The defaults that the help texts name are checked against it by a test.
"""

import argparse

from headrace.cli import values
from headrace.cli.parser import Parser

API_KEY_VARIABLE = "HEADRACE_API_KEY"
INSECURE_TLS_VARIABLE = "HEADRACE_INSECURE_TLS"


def add_flags(parser: Parser) -> None:
    """Declare everything that a server can be told."""
    parser.set_defaults(foreign=[])
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        type=values.nonempty,
        help="s3://BUCKET/PREFIX (or gs://, az://), https://HOST/PATH/, ORG/NAME on the Hugging Face hub, or a local "
        "folder, with config.json and *.safetensors",
    )
    _add_model_flags(parser.add_argument_group("model"))
    _add_loading_flags(parser.add_argument_group("loading"))
    _add_server_flags(parser.add_argument_group("server"))
    _add_memory_flags(parser.add_argument_group("memory and scheduling"))
    _add_own_flags(parser.add_argument_group("flags that SGLang does not have"))
    parser.add_flags_when_needed(_add_foreign_flags)


def _add_foreign_flags(parser: Parser) -> None:
    # Hundreds of flags: 10 ms of a start that does not use one.
    from headrace.cli.sglang_flags import add_foreign_flags

    add_foreign_flags(parser)


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model-path",
        "--model",
        dest="model_path",
        metavar="MODEL",
        type=values.nonempty,
        help="another way to name MODEL",
    )
    group.add_argument(
        "--revision",
        metavar="NAME",
        type=values.nonempty,
        help="branch, tag or commit of a model on the Hugging Face hub (default: its main branch)",
    )
    group.add_argument(
        "--served-model-name",
        metavar="NAME",
        type=values.nonempty,
        help="the model's name in /v1/models and in requests (default: MODEL as it was given)",
    )
    group.add_argument(
        "--weight-version",
        metavar="NAME",
        type=values.nonempty,
        help="a name for the weights, which /model_info tells until /update_weights_from_disk gives another (default: "
        "default)",
    )
    group.add_argument(
        "--tokenizer-path",
        metavar="PATH",
        type=values.nonempty,
        help="a URI or folder with the tokenizer's files (default: beside the weights)",
    )
    group.add_argument(
        "--chat-template",
        metavar="FILE",
        type=values.nonempty,
        help="a Jinja template file that replaces the model's own",
    )
    group.add_argument(
        "--context-length",
        metavar="TOKENS",
        type=values.integer(1),
        help="tokens that one request may take, prompt and answer (default: the model's own)",
    )
    group.add_argument(
        "--dtype",
        type=values.dtype,
        choices=("auto", "bfloat16", "float16", "float32"),
        help="number format of weights and KV cache (default: auto, the checkpoint's own); half and float are "
        "understood as float16 and float32",
    )
    group.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where the model runs (default: auto, a GPU if torch finds one)",
    )


def _add_loading_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--load-format",
        choices=("auto", "safetensors", "runai_streamer", "dummy"),
        help="auto (default), safetensors and runai_streamer all mean the streaming loader; dummy reads no weights "
        "and fills them with random numbers",
    )
    group.add_argument(
        "--model-loader-extra-config",
        metavar="JSON",
        help='an object with the keys "concurrency" (parallel connections), "memory_limit" (bytes of staging '
        'buffers; -1 no limit, 0 the smallest), "distributed" (no effect with one rank), "verify" ("manifest", '
        'the default: what is read is compared with a manifest where there is one; "auto": else with what the store '
        'keeps; "require": or it is an error; "off") and '
        '"restart_on_change" (load again where an object is replaced meanwhile)',
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        type=values.nonempty,
        help="address to listen on (default: 127.0.0.1; 0.0.0.0 is every IPv4 interface)",
    )
    group.add_argument(
        "--port",
        type=values.integer(0, 65535),
        metavar="PORT",
        help="port to listen on (default: 30000; 0 takes a free one)",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="bearer token that every route but /health, /ping, /ready and /metrics asks for. Other users of the machine can read a "
        f"command line: prefer the variable {API_KEY_VARIABLE}",
    )
    group.add_argument(
        "--sampling-defaults",
        choices=("model", "openai"),
        help="where temperature, top_p, top_k, min_p and repetition_penalty come from when a request does not give "
        "them: the model's generation_config.json (default: model) or OpenAI's defaults",
    )
    group.add_argument(
        "--enable-cache-report",
        action="store_true",
        help="tell in each answer's usage how many prompt tokens were found in the prefix cache",
    )
    group.add_argument(
        "--skip-server-warmup",
        action="store_true",
        help="be ready as soon as the weights are there, without the warm-up request",
    )
    group.add_argument(
        "--watchdog-timeout",
        metavar="SECONDS",
        type=values.seconds,
        help="end an engine that has work, or warms up, and gives no sign of life for so long; it writes first where its "
        "threads stand, and is then started again as after any failure (default: 300; 0 never ends it)",
    )
    group.add_argument(
        "--log-level",
        type=str.lower,
        choices=("debug", "info", "warning", "error", "critical"),
        help="the least important lines to print (default: info)",
    )
    group.add_argument(
        "--enable-trace",
        action="store_true",
        help="send OpenTelemetry traces: a span for each request for text, and one for the start-up. Needs the extra "
        "`otel`",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="ENDPOINT",
        type=values.traces_endpoint,
        help="where --enable-trace sends them, by OTLP over HTTP: HOST:PORT or a URL (default: "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT or http://localhost:4318/v1/traces)",
    )


def _add_memory_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mem-fraction-static",
        metavar="SHARE",
        type=values.fraction,
        help="share of the device's memory (or of the cgroup's limit) that weights and KV cache may take "
        "(default: 0.85, or what can be had at this moment; a share that is given is held or refused)",
    )
    group.add_argument(
        "--max-total-tokens",
        metavar="TOKENS",
        type=values.integer(1),
        help="size of the KV pool in tokens (default: what the share leaves, and all running requests can use)",
    )
    group.add_argument(
        "--max-running-requests",
        metavar="N",
        type=values.integer(1),
        help="requests that are computed together at the most (default: 64)",
    )
    group.add_argument(
        "--max-queued-requests",
        metavar="N",
        type=values.integer(1),
        help="requests that may wait, for a place among the running ones or for the end of the load; one more is "
        "answered 503 with Retry-After (default: no limit)",
    )
    group.add_argument(
        "--chunked-prefill-size",
        metavar="TOKENS",
        type=values.chunk_size,
        help="prompt tokens computed in one step at the most (default: 512)",
    )
    group.add_argument(
        "--max-prefill-tokens",
        metavar="TOKENS",
        type=values.integer(1),
        help="the same limit for all prompts of a step together; the smaller one counts (default: 16384)",
    )
    group.add_argument(
        "--page-size",
        metavar="TOKENS",
        type=values.integer(1),
        help="tokens in one page of the KV pool (default: 16)",
    )
    group.add_argument(
        "--disable-radix-cache",
        action="store_true",
        help="compute every prompt from its first token, without a prefix cache",
    )
    group.add_argument(
        "--enable-priority-scheduling",
        action="store_true",
        help="serve requests with a higher `priority` first; without it the field is refused",
    )
    group.add_argument(
        "--enable-deterministic-inference",
        action="store_true",
        help="give a greedy or seeded request the same text and logprobs, bit for bit, whatever runs beside it, however "
        "its prompt is cut and whatever the prefix cache holds. On the CPU only; prompts take two to four times as "
        "long, answers one and a half to three times. Without it, texts may part where two tokens are almost "
        "equally likely",
    )
    group.add_argument(
        "--random-seed",
        metavar="N",
        type=values.integer(0, (1 << 63) - 1),
        help="seed of requests that bring none (default: another one at each start)",
    )


def _add_own_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shutdown-timeout",
        metavar="SECONDS",
        type=values.seconds,
        help="how long running requests may go on after SIGTERM (default: 30)",
    )
    group.add_argument(
        "--engine-restarts",
        metavar="N",
        type=values.integer(0),
        help="how often in a row a failed engine is started again, after 1, 2, 4 and at most 30 s; then the server ends. "
        "An engine that has served for ten minutes begins a new row. A first load that a wrong name, a missing right or "
        "a bad file ends is not tried again (default: 3; 0 ends the server with its engine)",
    )
    group.add_argument(
        "--queue-while-loading",
        action=argparse.BooleanOptionalAction,
        help="let requests that come while the model loads wait for it (the default), or answer them 503 with "
        "Retry-After",
    )
    group.add_argument(
        "--queue-timeout",
        metavar="SECONDS",
        type=values.seconds,
        help="how long they wait at the most; then they are answered 503 with Retry-After (default: 600)",
    )
    group.add_argument(
        "--max-body-size",
        metavar="BYTES",
        type=values.size_bytes,
        help="larger request bodies are answered 413; K, M and G are understood (default: 16M)",
    )
    group.add_argument(
        "--log-format",
        type=str.lower,
        choices=("text", "json"),
        help="lines for a person, or one JSON object a line with time, level, logger and message, and request_id "
        "and traceback where there is one (default: text)",
    )
    group.add_argument(
        "--insecure-tls",
        action="store_true",
        help="take any certificate of the place that the model comes from, as HEADRACE_INSECURE_TLS=1 does: whoever "
        "is on the way can then read and change everything. Better name its CA (docs/object_storage.md)",
    )
