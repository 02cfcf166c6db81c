"""`headrace serve MODEL`: from checked flags to the options that the server is started with."""

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.cli.flags import API_KEY_VARIABLE, INSECURE_TLS_VARIABLE, add_flags
from headrace.cli.parser import UsageError

if TYPE_CHECKING:
    from headrace.server.options import ServeOptions

__all__ = ["DESCRIPTION", "EXAMPLES", "add_flags", "add_parser", "run", "serve_options"]

DESCRIPTION = (
    "Open an OpenAI-compatible server for one model, whose weights stream from where they lie into memory."
)
EXAMPLES = """\
examples:
  headrace serve s3://my-bucket/models/qwen --served-model-name qwen
  headrace serve ./qwen --host 0.0.0.0 --port 8000 --device cpu
  headrace serve s3://my-bucket/qwen --model-loader-extra-config '{"concurrency": 8}'

An S3 store is found by the usual AWS variables and files: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL, AWS_PROFILE and so on. Flags of SGLang's server that have
no effect here are accepted and named in one line each; docs/flags.md lists them."""

# The engine's flags by their names in EngineOptions, which are their names here too.
_ENGINE_FLAGS = (
    "tokenizer_path",
    "device",
    "dtype",
    "load_format",
    "context_length",
    "mem_fraction_static",
    "max_total_tokens",
    "max_running_requests",
    "max_queued_requests",
    "max_prefill_tokens",
    "page_size",
    "random_seed",
    "log_level",
)
_ENGINE_SWITCHES = (
    "skip_server_warmup",
    "disable_radix_cache",
    "enable_priority_scheduling",
    "enable_deterministic_inference",
)
_FRONT_FLAGS = (
    "host",
    "port",
    "weight_version",
    "sampling_defaults",
    "log_level",
    "log_format",
    "otlp_traces_endpoint",
    "engine_restarts",
    "queue_while_loading",
)
# Flags whose options bear their unit in the name.
_FRONT_FLAGS_WITH_UNIT = {
    "shutdown_timeout": "shutdown_timeout_s",
    "watchdog_timeout": "watchdog_timeout_s",
    "queue_timeout": "queue_timeout_s",
    "max_body_size": "max_body_bytes",
}


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "serve", help="serve a model from a bucket or a folder", description=DESCRIPTION, epilog=EXAMPLES
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it; the exit code. Raises HeadraceError for flags that cannot be met."""
    options = serve_options(args, os.environ)
    if args.insecure_tls:
        os.environ[INSECURE_TLS_VARIABLE] = "1"  # the engine, which connects, inherits it
    from headrace.server.life.launch import run as run_server

    return run_server(options)


def serve_options(args: argparse.Namespace, environ: Mapping[str, str]) -> "ServeOptions":
    """The options that parsed flags and the environment ask for.

    Raises UsageError for flags that contradict each other or ask for what is not there, and HeadraceError for
    a model that cannot be: an unsupported kind of URI, a folder that does not exist.
    """
    notes: list[str] = []
    if args.foreign:
        from headrace.cli.sglang_flags import notes_on_foreign_flags

        notes += notes_on_foreign_flags(args.foreign)
    model = _model(args)
    engine = _given(args, _ENGINE_FLAGS) | {name: getattr(args, name) for name in _ENGINE_SWITCHES}
    if args.model_loader_extra_config is not None:
        from headrace.cli.loader_config import parse_load_config

        engine["load_config"] = parse_load_config(args.model_loader_extra_config)
        if engine["load_config"].distributed:
            notes.append(
                '"distributed" in --model-loader-extra-config has no effect here: there is one rank.'
            )
    if args.chunked_prefill_size == -1:
        notes.append("--chunked-prefill-size -1 has no effect here: prompts are always computed in chunks.")
    elif args.chunked_prefill_size is not None:
        engine["chunked_prefill_size"] = args.chunked_prefill_size
    notes += _notes_on_traces(args)
    front = _given(args, _FRONT_FLAGS)
    with_unit = _given(args, tuple(_FRONT_FLAGS_WITH_UNIT))
    front |= {_FRONT_FLAGS_WITH_UNIT[name]: value for name, value in with_unit.items()}

    from headrace.ipc.options import EngineOptions
    from headrace.server.options import ServeOptions
    from headrace.source.uri import at_revision, parse_source

    place = model if args.revision is None else at_revision(model, args.revision)
    parse_source(place)
    if args.tokenizer_path is not None:
        parse_source(args.tokenizer_path)
    return ServeOptions(
        engine=EngineOptions(model=place, **engine),
        served_model_name=args.served_model_name if args.served_model_name is not None else model,
        api_key=_api_key(args.api_key, environ),
        chat_template=args.chat_template,
        enable_cache_report=args.enable_cache_report,
        enable_trace=args.enable_trace,
        notes=tuple(notes),
        **front,
    )


def _notes_on_traces(args: argparse.Namespace) -> list[str]:
    """What is worth a line. Raises UsageError where traces are asked for that cannot be made."""
    endpoint: str | None = args.otlp_traces_endpoint
    if not args.enable_trace:
        return [] if endpoint is None else ["--otlp-traces-endpoint has no effect without --enable-trace."]
    from importlib.util import find_spec

    try:
        found = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # of a parent
        found = None
    if found is None:
        raise UsageError(
            "--enable-trace needs OpenTelemetry's SDK, which is not installed.",
            remedy="pip install 'headrace[otel]', or leave --enable-trace out.",
        )
    if endpoint is not None and ":4317/" in endpoint:
        return [
            "--otlp-traces-endpoint names the port 4317, where collectors expect gRPC; traces are sent by HTTP, which "
            "they usually take at 4318."
        ]
    return []


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _model(args: argparse.Namespace) -> str:
    if args.model is not None and args.model_path is not None and args.model != args.model_path:
        raise UsageError(
            "MODEL and --model-path name two models.", remedy="Name one: a server serves one model."
        )
    model: str | None = args.model_path if args.model is None else args.model
    if model is None:
        raise UsageError(
            "No model is named.",
            remedy="Give MODEL or --model-path MODEL: s3://BUCKET/PREFIX, hf://ORG/NAME, https://HOST/PATH/ or a folder.",
        )
    return model


def _api_key(flag: str | None, environ: Mapping[str, str]) -> str | None:
    """The key that requests must bring. The message about a bad one must not show it."""
    key, origin = (
        (flag, "--api-key") if flag is not None else (environ.get(API_KEY_VARIABLE), API_KEY_VARIABLE)
    )
    if key is None or (key == "" and flag is None):
        return None
    if not key or not all("!" <= character <= "~" for character in key):
        raise UsageError(
            f"The key in {origin} cannot be sent as a bearer token.",
            remedy="Use visible ASCII characters without spaces.",
        )
    return key
