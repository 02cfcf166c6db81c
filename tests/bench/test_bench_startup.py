"""Cold starts of servers that are started in a moment: what is measured, who starts when, and how failures are told."""

import os
import re
import sys
from pathlib import Path

import psutil
import pytest

from headrace.bench.cold_start import Ask, ColdStart, Contender, Launcher, Phase, StartFailed, cold_start
from headrace.bench.startup_rounds import command_seconds, run_starts
from headrace.demo.child import end_child, start_child
from headrace.demo.ports import free_ports
from tests.e2e.serving import until

SERVER = str(Path(__file__).with_name("small_server.py"))
TIMEOUT_S = 60.0
LAUNCHER = Launcher(
    start=lambda command, environ, output: start_child(
        command, environment=environ, stdout=output, stderr=output
    ),
    end=end_child,
    free_port=lambda: free_ports(1)[0],
)


def small(behaviour: str, *more: str, name: str = "small") -> Contender:
    return Contender(name, (sys.executable, SERVER, "{port}", behaviour, *more))


def started(behaviour: str, *more: str, ask: Ask = "at-once", timeout_s: float = TIMEOUT_S) -> ColdStart:
    return cold_start(small(behaviour, *more), "model", os.environ, LAUNCHER, ask=ask, timeout_s=timeout_s)


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []

    def begin(self, name: str, number: int) -> None:
        self.order.append((name, number))

    def end(self, name: str, value: float) -> None:
        assert value > 0


def test_a_start_ends_with_the_first_text_of_an_answer() -> None:
    start = started("plain")
    assert 0 < start.first_token_s < TIMEOUT_S
    assert start.text == start.text_again == " Paris."
    assert (start.health_s, start.ready_s, start.phases) == (None, None, ())
    assert start.first_byte_s is start.last_byte_s is start.after_last_byte_s is None


def test_a_request_that_is_answered_503_is_sent_again() -> None:
    start = started("busy")
    assert start.text == " Paris."
    assert start.health_s is not None and start.health_s > 0


def test_what_a_server_tells_of_its_start_is_taken_over() -> None:
    start = started("tells")
    assert start.ready_s == 0.75
    assert start.phases == (
        Phase("transfer", 0.0, 0.002, None),
        Phase("import torch", 0.0, 0.004, 0.5),
    )
    assert (start.first_byte_s, start.last_byte_s) == (0.0, 0.002)
    assert start.after_last_byte_s == start.first_token_s - 0.002


def test_a_request_can_wait_until_the_server_is_ready() -> None:
    start = started("tells", ask="when-ready")
    assert start.health_s is not None and start.ready_s is not None
    assert start.health_s <= start.ready_s <= start.first_token_s


def test_health_is_readiness_where_nothing_else_is() -> None:
    start = started("busy", ask="when-ready")
    assert start.ready_s == start.health_s


def test_an_answer_that_changes_is_seen() -> None:
    start = started("changes")
    assert start.text != start.text_again


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("dies", r"^small: It ended with status 7 before it had answered\.\ncannot find\nthe model$"),
        ("refuses", r'^small: /v1/completions answered 404: {"error": "the model m is not served here"}$'),
        ("restarted", r"^small: Its engine failed and was started again: this is no start to be measured\.$"),
        ("breaks", r"^small: The answer's stream ended without \[DONE\]\.$"),
    ],
)
def test_a_server_that_does_not_come_up_is_named_with_what_it_said(behaviour: str, sentence: str) -> None:
    with pytest.raises(StartFailed) as raised:
        started(behaviour)
    assert re.search(sentence, raised.value.message), raised.value.message


def test_a_start_that_takes_too_long_is_ended() -> None:
    with pytest.raises(StartFailed, match="There was not a token within the time") as raised:
        started("hangs", timeout_s=0.3)
    assert "--timeout" in raised.value.remedy


def test_a_command_that_cannot_be_run_is_an_error() -> None:
    nowhere = Contender("peer", ("/nowhere/serve", "{port}"))
    with pytest.raises(StartFailed, match="peer cannot be run: /nowhere/serve: No such file"):
        cold_start(nowhere, "model", os.environ, LAUNCHER, ask="at-once", timeout_s=TIMEOUT_S)


def test_what_a_server_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started("child", str(note))
    child = int(note.read_text())

    def has_ended() -> bool:
        try:
            # Whoever inherited it has yet to wait for it.
            return psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(has_ended, "the child's end")


def test_every_round_has_each_server_once_in_an_order_that_moves_on() -> None:
    told = Told()
    pair = [small("plain", name="one"), small("plain", name="two")]
    results = run_starts(pair, "model", os.environ, LAUNCHER, 2, told, ask="at-once", timeout_s=TIMEOUT_S)
    assert told.order == [("one", 0), ("two", 0), ("two", 1), ("one", 1), ("one", 2), ("two", 2)]
    assert {name: len(starts) for name, starts in results.items()} == {"one": 2, "two": 2}


def test_only_the_two_names_in_braces_are_filled_in() -> None:
    contender = Contender("x", ("serve", "{model}", '--extra={"a": {}}', "--url=h:{port}/{model}"))
    assert contender.words("s3://b/m", 8000) == [
        "serve",
        "s3://b/m",
        '--extra={"a": {}}',
        "--url=h:8000/s3://b/m",
    ]


def test_a_command_is_timed_to_its_end() -> None:
    assert command_seconds([sys.executable, "-c", "import time; time.sleep(0.05)"], 1) >= 0.05
