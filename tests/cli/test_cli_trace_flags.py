"""--enable-trace and --otlp-traces-endpoint: SGLang's names, over HTTP."""

import importlib.util
import shlex
from typing import Any

import pytest

from headrace.cli.flags import add_flags
from headrace.cli.parser import Parser, UsageError
from headrace.cli.serve import serve_options
from headrace.server.options import ServeOptions


def options(line: str) -> ServeOptions:
    parser = Parser(prog="headrace serve")
    add_flags(parser)
    return serve_options(parser.parse_args(["s3://b/m", *shlex.split(line)]), {})


def test_traces_are_off_unless_they_are_asked_for() -> None:
    assert (options("").enable_trace, options("").otlp_traces_endpoint) == (False, None)
    assert options("--enable-trace").enable_trace


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://otel.example.com", "https://otel.example.com/v1/traces"),
        ("https://otel.example.com/otlp/v1/traces?a=b", "https://otel.example.com/otlp/v1/traces?a=b"),
        ("[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_an_endpoint_is_a_host_and_port_or_a_url(endpoint: str, url: str) -> None:
    got = options(f"--enable-trace --otlp-traces-endpoint '{endpoint}'")
    assert (got.otlp_traces_endpoint, got.notes) == (url, ())


@pytest.mark.parametrize(
    "endpoint", ["", "grpc://collector:4317", "http://", "collector:port", ":4318", "[::1"]
)
def test_what_is_no_endpoint_is_refused(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(f"--enable-trace --otlp-traces-endpoint '{endpoint}'")
    assert "is neither HOST:PORT nor an http:// or https:// URL" in capsys.readouterr().err


def test_an_endpoint_without_traces_is_noted() -> None:
    assert options("--otlp-traces-endpoint collector:4318").notes == (
        "--otlp-traces-endpoint has no effect without --enable-trace.",
    )


def test_the_port_of_grpc_is_noted() -> None:
    (note,) = options("--enable-trace --otlp-traces-endpoint localhost:4317").notes
    assert "4317, where collectors expect gRPC" in note


def test_without_the_sdk_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(UsageError, match="OpenTelemetry's SDK, which is not installed") as refused:
        options("--enable-trace")
    assert "pip install 'headrace[otel]'" in refused.value.remedy
    assert options("").notes == ()
