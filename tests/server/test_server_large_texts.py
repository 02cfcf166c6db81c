"""Large texts and slow templates: refused in time, and never in the way of others."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from byte_model import CONTEXT_LENGTH, model_info
from front_harness import Front, running_front
from test_server_life import READY_LINE, Served

import headrace.text.template_environment as template_environment
from headrace.server.body import VALUES_AT_MOST
from headrace.server.text_threads import DaemonExecutor, TextThreads
from headrace.text.tokenizer import Tokenizer

LARGE = 1_000_000
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def never_encode(self: Tokenizer, text: str, **_: object) -> list[int]:
    raise AssertionError("it was encoded")


def test_a_text_that_cannot_fit_is_refused_without_being_encoded(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", never_encode)
    error = error_of(front.complete(prompt="a" * LARGE), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "has at least " in error["message"]
    assert f"{CONTEXT_LENGTH} tokens" in error["message"]


def test_a_conversation_that_cannot_fit_is_refused_by_the_name_of_its_field(front: Front) -> None:
    for content in ("a" * CONTEXT_LENGTH, "a" * LARGE):
        error = error_of(front.chat(messages=[{"role": "user", "content": content}]), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_a_body_of_very_many_values_is_refused_before_they_are_made(front: Front) -> None:
    for item in (b"[]", b"1", b'""', b"{}"):
        body = b'{"prompt":[' + item + (b"," + item) * VALUES_AT_MOST + b"]}"
        response = front.http.post("/v1/completions", content=body)
        assert str(VALUES_AT_MOST) in error_of(response, 413)["message"]


def test_commas_in_a_text_are_no_values(front: Front) -> None:
    prompt = '\\,"[' * (VALUES_AT_MOST // 4)
    assert error_of(front.complete(prompt=prompt), 400)["code"] == "context_length_exceeded"


def test_a_compressed_body_is_a_415_that_says_so(front: Front) -> None:
    response = front.http.post("/v1/completions", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert "Content-Encoding gzip" in error_of(response, 415)["message"]


@pytest.fixture
def held() -> Iterator[Callable[[], None]]:
    """A call that does not return before the test has ended."""
    end = threading.Event()
    yield lambda: end.wait(60) and None
    end.set()


def test_texts_of_others_go_on_while_templates_and_large_texts_take_their_time(
    front: Front, held: Callable[[], None]
) -> None:
    texts = front.client.texts
    for lane, count in (("render", 5), ("large", 5)):
        for _ in range(count):
            texts._lanes[lane].submit(held)  # type: ignore[index]
    assert front.complete().status_code == 200


def test_a_template_without_end_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment, "RENDERING_S", 0.05)
    with running_front(info=model_info(template=ENDLESS)) as front:
        error = error_of(front.chat(), 400)
        assert "did not end within" in error["message"]
        assert error["code"] == "template_error"


def test_a_call_that_was_cancelled_before_its_turn_is_not_made(held: Callable[[], None]) -> None:
    executor = DaemonExecutor(1, "test")
    executor.submit(held)
    made: list[int] = []
    assert executor.submit(made.append, 1).cancel()
    executor.close()
    assert made == []


def test_closing_waits_for_nothing(held: Callable[[], None]) -> None:
    texts = TextThreads()
    running = texts._lanes["large"].submit(held)
    texts.close()
    assert texts.busy
    assert not running.done()


@pytest.fixture
def slow_template(tmp_path: Path) -> str:
    """It takes all of the time that a template gets."""
    path = tmp_path / "slow.jinja"
    path.write_text(ENDLESS)
    return str(path)


@pytest.mark.parametrize("signals", [1, 2])
def test_the_end_does_not_wait_for_a_template(tmp_path: Path, slow_template: str, signals: int) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    changes: dict[str, object] = {
        "shutdown_timeout_s": 0.1 if signals == 1 else 600,
        "chat_template": slow_template,
    }
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    with Served(temporary, "talks", **changes) as server, ThreadPoolExecutor(4) as threads:
        server.line(READY_LINE)
        url = server.url()
        for _ in range(4):
            threads.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=60)
        # Whoever is answered after them knows that they have been admitted.
        while httpx.get(f"{url}/health").status_code != 200:
            pass
        httpx.post(f"{url}/v1/completions", json={"prompt": "Say"})
        server.process.send_signal(signal.SIGTERM)
        server.line("Shutting down")
        if signals == 2:
            server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0 if signals == 1 else 128 + signal.SIGTERM)
        assert "Traceback" not in server.text
    assert list(temporary.iterdir()) == []
