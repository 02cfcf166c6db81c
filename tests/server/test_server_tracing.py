"""OpenTelemetry traces as a collector gets them, by the real SDK."""

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from front_harness import OPTIONS, Front, running_front
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from otlp_receiver import Receiver, attributes_of, receiver
from scripted_engine import Script, endless, refuse, say
from test_server_life import Served

from headrace import __version__

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}


@contextlib.contextmanager
def traced(script: Script | None = None) -> Iterator[tuple[Front, Receiver]]:
    """A front that sends traces. They are all there once the inner block has ended."""
    with receiver() as collector:
        options = msgspec.structs.replace(OPTIONS, enable_trace=True, otlp_traces_endpoint=collector.url)
        with running_front(script, options=options) as front:
            yield front, collector


def one_request(script: Script | None = None, *, chat: bool = False, **body: object) -> tuple[Receiver, Any]:
    """The collector after one request, and the request's span."""
    with traced(script) as (front, collector):
        front.chat(**body) if chat else front.complete(**body)
    return collector, collector.span("chat tiny" if chat else "text_completion tiny")


def test_a_request_is_a_span_by_the_conventions_for_generative_ai() -> None:
    collector, span = one_request(
        say("Hello", cached_tokens=2), max_tokens=3, temperature=0.5, top_k=7, seed=11, n=2
    )
    assert span.kind == Span.SPAN_KIND_SERVER
    told = attributes_of(span)
    assert told.pop("headrace.request_id")
    assert told.pop("gen_ai.response.id").startswith("cmpl-")
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": told["gen_ai.request.seed"],
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "headrace.outcome": "finished",
    }
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert collector.resources[0]["service.name"] == "headrace"
    assert collector.resources[0]["service.version"] == __version__


def test_a_chat_that_a_stop_string_ends_says_so() -> None:
    _, span = one_request(say("Hello, world."), chat=True, stop=["lo"])
    assert attributes_of(span)["gen_ai.operation.name"] == "chat"
    assert attributes_of(span)["gen_ai.response.finish_reasons"] == ["stop"]


def test_a_request_s_stages_are_spans_below_it_one_after_the_other() -> None:
    collector, span = one_request(stream=True)
    stages = collector.children(span)
    assert [stage.name for stage in stages] == ["prepare", "queue and prefill", "decode"]
    ends = [span.start_time_unix_nano] + [stage.end_time_unix_nano for stage in stages]
    assert [stage.start_time_unix_nano for stage in stages] == ends[:-1]
    assert ends[-1] <= span.end_time_unix_nano
    (event,) = span.events
    assert (event.name, event.time_unix_nano) == ("first token", stages[2].start_time_unix_nano)


def test_the_caller_s_trace_goes_on() -> None:
    with traced() as (front, collector):
        front.http.post("/v1/completions", json={"model": "tiny", "prompt": "Say"}, headers=SAMPLED)
    span = collector.span("text_completion tiny")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
    assert span.trace_state == "vendor=1"
    assert {child.trace_id.hex() for child in collector.children(span)} == {TRACE}


@pytest.mark.parametrize("header", ["", "00-nonsense", f"ff-{TRACE}-{CALLER}-01", "00-" + "é" * 40])
def test_without_a_usable_caller_a_trace_begins_here(header: str) -> None:
    with traced() as (front, collector):
        headers = [(b"traceparent", header.encode("latin-1"))]
        front.http.post("/v1/completions", json={"model": "tiny", "prompt": "Say"}, headers=headers)
    span = collector.span("text_completion tiny")
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE


def test_a_caller_that_does_not_sample_is_not_traced() -> None:
    unsampled = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    with traced() as (front, collector):
        front.http.post("/v1/completions", json={"model": "tiny", "prompt": "Say"}, headers=unsampled)
        front.complete(user="another")
    assert collector.span("text_completion tiny").trace_id.hex() != TRACE


def test_no_text_of_a_prompt_or_an_answer_is_sent() -> None:
    with traced(say("A walrus answers.")) as (front, collector):
        for stream in (False, True):
            front.complete(prompt="A zebra asks", stream=stream, stop=["penguin"], user="giraffe")
            front.chat(messages=[{"role": "user", "content": "A zebra asks"}], stream=stream)
    sent = b"".join(collector.bodies)
    assert len(collector.spans("chat tiny")) == 2
    assert not [word for word in (b"zebra", b"walrus", b"penguin", b"giraffe", b"127.0.0.1") if word in sent]


def test_what_a_client_gets_wrong_is_told_and_is_no_error_of_the_server() -> None:
    with traced() as (front, collector):
        front.complete(model="other")
    span = collector.span("text_completion tiny")
    told = attributes_of(span)
    assert (told["error.type"], told["headrace.outcome"]) == ("404", "refused")
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert collector.children(span) == []


def test_what_the_engine_refuses_is_an_error() -> None:
    _, span = one_request(refuse(500, "engine_error", "It broke."))
    assert attributes_of(span)["error.type"] == "500"
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_a_stream_that_breaks_off_is_an_error_though_its_status_was_200() -> None:
    collector, span = one_request(refuse(500, "engine_error", "It broke.", after="Hel"), stream=True)
    told = attributes_of(span)
    assert (told["http.response.status_code"], told["error.type"]) == (200, "broken_off")
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert [stage.name for stage in collector.children(span)] == ["prepare", "queue and prefill", "decode"]


def test_a_client_that_leaves_is_told_and_is_no_error_of_the_server() -> None:
    wanted = {"model": "tiny", "prompt": "Say", "stream": True}
    with (
        traced(endless) as (front, collector),
        front.http.stream("POST", "/v1/completions", json=wanted) as answer,
    ):
        next(answer.iter_lines())
    span = collector.span("text_completion tiny")
    told = attributes_of(span)
    assert (told["error.type"], told["headrace.outcome"]) == ("client_left", "aborted")
    assert span.status.code == Status.STATUS_CODE_UNSET


def test_probes_and_scrapes_are_not_traced() -> None:
    with traced() as (front, collector):
        for path in ("/health", "/ready", "/metrics", "/v1/models", "/health_generate"):
            assert front.http.get(path).status_code == 200
        assert front.http.get("/v1/completions").status_code == 405
    assert {span.name for span in collector.spans() if span.parent_span_id == b""} == {"start-up"}


def test_the_start_is_a_span_with_its_phases_below_it() -> None:
    with traced() as (_, collector):
        pass
    span = collector.span("start-up")
    told = attributes_of(span)
    assert told["headrace.model_uri"] == "s3://bucket/tiny"
    assert told["headrace.bytes_streamed"] == 1_000_000
    names = [child.name for child in collector.children(span)]
    assert names[0] == "front: until the engine is started"
    assert sorted(names[1:]) == ["front: tokenizer", "transfer", "warm up"]


def test_the_server_as_a_process_sends_its_last_spans_before_it_ends(tmp_path: Path) -> None:
    with (
        receiver() as collector,
        Served(tmp_path, "says", enable_trace=True, otlp_traces_endpoint=collector.url) as server,
    ):
        server.line("ready to roll")
        answer = httpx.post(
            f"{server.url()}/v1/completions", json={"model": "tiny", "prompt": "Say"}, timeout=60
        )
        assert answer.status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        collector.span("start-up")
        collector.span("text_completion tiny")


def test_a_collector_that_is_away_or_silent_holds_up_neither_requests_nor_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        with Served(tmp_path, "says", enable_trace=True, otlp_traces_endpoint=endpoint) as server:
            server.line("ready to roll")
            answer = httpx.post(
                f"{server.url()}/v1/completions", json={"model": "tiny", "prompt": "Say"}, timeout=60
            )
            assert answer.status_code == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0


def test_a_server_that_sends_no_traces_does_not_import_what_does() -> None:
    code = "import sys, headrace.server.life.front; print([n for n in sys.modules if n.startswith('opentelemetry')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_the_sdk_s_own_variables_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-for-tests")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    collector, _ = one_request()
    resource = collector.resources[0]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("chat-for-tests", "test")
    assert resource["service.version"] == __version__


def test_the_sdk_s_own_sampler_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with traced() as (front, collector):
        front.complete()
        front.http.post("/v1/completions", json={"model": "tiny", "prompt": "Say"}, headers=SAMPLED)
    assert collector.span("text_completion tiny").trace_id.hex() == TRACE


def test_a_collector_that_refuses_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as collector:
        options = msgspec.structs.replace(
            OPTIONS, enable_trace=True, otlp_traces_endpoint=collector.url.replace("/v1/traces", "/refuse")
        )
        with running_front(options=options) as front:
            assert front.complete().status_code == 200
    assert collector.bodies == []
    assert any("opentelemetry" in record.name for record in caplog.records)
