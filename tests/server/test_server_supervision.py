"""Engines that fail and are started again, as processes: each one lives as the next line of a file says."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import psutil
import pytest
from test_server_life import READY_LINE, Served, Stream, temporary

__all__ = ["temporary"]


def lives(tmp_path: Path, *each: str) -> str:
    """A model whose first engine does this, the second that, and all after the last what the last one does."""
    path = tmp_path / "lives"
    path.write_text("\n".join(each))
    return f"lives:{path}"


def ready(url: str) -> dict[str, object]:
    """What /ready says."""
    told: dict[str, object] = httpx.get(f"{url}/ready").json()
    return told


def ask(url: str, **body: object) -> httpx.Response:
    """A short answer that is not streamed."""
    return httpx.post(f"{url}/v1/completions", json={"prompt": "Say", "max_tokens": 5, **body}, timeout=60)


class Asking:
    """A question in a thread."""

    def __init__(self, url: str, **body: object) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(ask(url, **body)))
        self._thread.start()

    def answer(self) -> httpx.Response:
        """The answer, once it is there."""
        self._thread.join()
        return self._answers[0]


def metrics(server: Served) -> str:
    """What a scrape gets."""
    return httpx.get(f"{server.url()}/metrics").text


def kill(process: psutil.Process) -> None:
    """Kill it and wait until it is gone."""
    process.kill()
    process.wait(30)


def end(server: Served) -> None:
    """An orderly end that leaves no process behind."""
    children = psutil.Process(server.process.pid).children()
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert not any(child.is_running() for child in children)
    assert "Traceback" not in server.text


def test_an_idle_engine_that_is_killed_is_started_again(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks")) as server:
        server.line(READY_LINE)
        url = server.url()
        before = ask(url).json()["choices"]
        first, (folder,) = server.engine(), temporary.iterdir()
        kill(first)
        line = server.line("is started again in")
        assert "The engine process was ended by SIGKILL." in line and "--mem-fraction-static" in line
        assert "(attempt 1 of 3)" in line
        server.line("Ready again")
        assert server.engine().pid != first.pid
        (new_folder,) = temporary.iterdir()
        assert new_folder != folder
        assert ask(url).json()["choices"] == before
        assert ready(url) == {"ready": True, "phase": "serving"}
        end(server)


def test_what_an_engine_computed_when_it_died_is_a_500_or_an_error_event(
    tmp_path: Path, temporary: Path
) -> None:
    with Served(temporary, lives(tmp_path, "endless")) as server:
        server.line(READY_LINE)
        asking = Asking(server.url(), max_tokens=2000)
        stream = Stream(server.url(), max_tokens=2000)
        while "headrace_time_to_first_token_seconds_count 2.0" not in metrics(server):
            pass
        kill(server.engine())
        answer = asking.answer()
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("engine_failed", "server_error")
        assert "was ended by SIGKILL" in error["message"]
        event, done = stream.all().strip().split("\n\n")[-2:]
        assert done == "data: [DONE]"
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_failed"
        server.line("Ready again")
        end(server)


def test_a_request_that_comes_while_it_is_started_again_waits(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks")) as server:
        server.line(READY_LINE)
        kill(server.engine())
        server.line("is started again in")
        answer = ask(server.url())
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == "Hello"
        end(server)


def test_the_time_until_the_next_try_is_told_and_sigterm_ends_it(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks"), first_restart_s=1000.0) as server:
        server.line(READY_LINE)
        kill(server.engine())
        server.line("is started again in")
        assert psutil.Process(server.process.pid).children() == []
        assert list(temporary.iterdir()) == []
        told = ready(server.url())
        assert (told["ready"], told["phase"], told["attempt"]) == (False, "restarting", 1)
        assert "SIGKILL" in str(told["reason"])
        assert 0 < float(str(told["next_try_s"])) <= 30
        assert httpx.get(f"{server.url()}/health").status_code == 200
        asking = Asking(server.url())
        while "headrace_http_requests_active 2.0" not in metrics(server):
            pass
        server.process.send_signal(signal.SIGTERM)
        assert asking.answer().status_code == 503
        assert server.end() == 0
        assert "Bye." in server.text and "Traceback" not in server.text


def test_a_restart_is_told_while_its_model_loads(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks", "halfway")) as server:
        server.line(READY_LINE)
        kill(server.engine())
        server.line("5.00 of 10.00 GB")
        told = ready(server.url())
        assert (told["phase"], told["bytes_done"]) == ("streaming weights", 5_000_000_000)
        assert told["attempt"] == 1 and "SIGKILL" in str(told["reason"])
        end(server)


def test_without_a_queue_such_a_request_is_sent_away_at_once(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks", "loading"), queue_while_loading=False) as server:
        server.line(READY_LINE)
        kill(server.engine())
        server.line("is started again in")
        answer = ask(server.url())
        assert answer.status_code == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        error = answer.json()["error"]
        assert error["code"] == "model_loading" and "SIGKILL" in error["message"]
        end(server)


@pytest.mark.parametrize("life", ["halfway", "accepts", "warms-up"])
def test_an_engine_that_is_killed_before_it_was_ever_ready_is_started_again(
    tmp_path: Path, temporary: Path, life: str
) -> None:
    with Served(temporary, lives(tmp_path, life, "talks")) as server:
        asking = Asking(server.url())
        phase = {"halfway": "streaming weights", "accepts": "streaming weights", "warms-up": "warming up"}[
            life
        ]
        while ready(server.url())["phase"] != phase:
            pass
        kill(server.engine())
        server.line("is started again in")
        server.line(READY_LINE)
        # Kept by the front; of one that accepted, what was sent before its end fails with it.
        assert asking.answer().status_code in ((200, 500, 503) if life == "accepts" else (200,))
        assert ask(server.url()).status_code == 200
        end(server)


def test_the_server_ends_with_the_last_reason_when_engines_fail_again_and_again(
    tmp_path: Path, temporary: Path
) -> None:
    with Served(temporary, lives(tmp_path, "talks", "exits"), engine_restarts=2) as server:
        server.line(READY_LINE)
        kill(server.engine())
        server.line("(attempt 1 of 2)")
        server.line("(attempt 2 of 2)")
        assert server.end() == 1
        last = server.text.rpartition("error: ")[2]
        assert last.startswith(
            "The engine has failed 3 times in a row and is not started again. The last time: "
        )
        assert "The engine process ended with exit code 7." in last
        assert "Traceback" not in server.text


def test_an_exit_without_a_word_during_the_first_load_is_tried_again(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "exits", "talks")) as server:
        server.line("The engine process ended with exit code 7.")
        server.line(READY_LINE)
        end(server)


def test_a_store_that_is_away_for_a_moment_is_asked_again(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "store-away", "talks")) as server:
        asking = Asking(server.url())
        assert "Check AWS_ENDPOINT_URL." in server.line("No connection to the store.")
        server.line(READY_LINE)
        assert asking.answer().status_code == 200
        end(server)


def test_a_load_that_cannot_succeed_is_not_tried_twice_before_the_server_was_ready(
    tmp_path: Path, temporary: Path
) -> None:
    with Served(temporary, lives(tmp_path, "fails", "talks")) as server:
        assert server.end() == 1
        assert "error: The bucket 'nowhere' does not exist." in server.text
        assert "started again" not in server.text


def test_the_same_load_is_tried_again_once_the_server_has_been_ready(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "talks", "fails", "talks")) as server:
        server.line(READY_LINE)
        kill(server.engine())
        assert "(attempt 2 of 3)" in server.line("The bucket 'nowhere' does not exist.")
        server.line("Ready again")
        end(server)


def test_an_engine_that_stands_still_with_work_is_ended_and_started_again(
    tmp_path: Path, temporary: Path
) -> None:
    with Served(temporary, lives(tmp_path, "endless", "talks"), watchdog_timeout_s=1.0) as server:
        server.line(READY_LINE)
        stream = Stream(server.url(), max_tokens=2000)
        engine = server.engine()
        engine.send_signal(signal.SIGSTOP)
        assert "gave no sign of life for 1 s" in stream.all()
        assert "--watchdog-timeout" in server.line("is started again in")
        server.line("Ready again")
        assert not engine.is_running()
        end(server)


def test_an_engine_that_hangs_in_a_step_shows_where(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "hang", "talks"), watchdog_timeout_s=1.0) as server:
        server.line(READY_LINE)
        assert ask(server.url()).status_code == 500
        server.line("Fatal Python error: Aborted")
        assert "in hang" in server.line("scripted_engine.py")
        server.line("Ready again")
        end(server)


def test_an_engine_that_stands_still_while_it_warms_up_is_ended(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "warms-up", "talks"), watchdog_timeout_s=1.0) as server:
        server.line("gave no sign of life for 1 s")
        server.line(READY_LINE)
        end(server)


def test_silence_without_work_and_a_load_that_takes_long_are_borne(tmp_path: Path, temporary: Path) -> None:
    with Served(temporary, lives(tmp_path, "halfway"), watchdog_timeout_s=0.1) as server:
        server.line("5.00 of 10.00 GB")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1.0)
        assert "no sign of life" not in server.text
        end(server)


@pytest.mark.parametrize("life", ["loading", "accepts", "warms-up"])
def test_sigterm_while_the_model_loads_sends_those_away_who_wait(
    tmp_path: Path, temporary: Path, life: str
) -> None:
    with Served(temporary, lives(tmp_path, life)) as server:
        asking = Asking(server.url())
        while "headrace_http_requests_active 2.0" not in metrics(server):
            pass
        server.process.send_signal(signal.SIGTERM)
        answer = asking.answer()
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert answer.json()["error"]["code"] == "shutting_down"
        assert server.end() == 0


def test_an_engine_that_dies_while_the_server_drains_is_not_started_again(
    tmp_path: Path, temporary: Path
) -> None:
    with Served(temporary, lives(tmp_path, "endless"), shutdown_timeout_s=600) as server:
        server.line(READY_LINE)
        stream = Stream(server.url(), max_tokens=2000)
        server.process.send_signal(signal.SIGTERM)
        server.line("Shutting down")
        kill(server.engine())
        assert "engine_failed" in stream.all()
        assert server.end() == 0
        assert "started again" not in server.text
