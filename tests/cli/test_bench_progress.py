"""How far a benchmark is, on a terminal and in a log."""

import io

from headrace.cli.bench_progress import BenchProgress


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_log_a_line_is_written_every_five_seconds_with_the_time_that_is_left() -> None:
    log, clock = io.StringIO(), Clock()
    progress = BenchProgress(12, 5, log, clock)
    progress.begin("wire", 0)
    clock.now_s += 4.9
    progress.tick()
    assert log.getvalue() == ""
    clock.now_s += 0.1
    progress.tick()
    progress.end("wire", 3.25)
    progress.begin("headrace", 1)
    clock.now_s += 5
    progress.tick()
    assert log.getvalue().splitlines() == [
        "bench: 0 of 12 loads (wire, warming up)",
        "bench: 1 of 12 loads (headrace, round 1 of 5; last: wire 3.25 GB/s), about 110 s left",
    ]


def test_on_a_terminal_it_is_a_bar_that_names_what_is_measured() -> None:
    terminal = Terminal()
    with BenchProgress(2, 1, terminal) as progress:
        progress.begin("wire", 0)
        progress.end("wire", 3.25)
        progress.begin("headrace", 1)
        progress.tick()
    last = terminal.getvalue().rpartition("\r")[2]
    assert "headrace, round 1 of 1" in last
    assert "1/2" in last
    assert "wire 3.25 GB/s" in last


def test_what_is_counted_and_told_can_be_something_else_than_loads() -> None:
    log, clock = io.StringIO(), Clock()
    progress = BenchProgress(2, 1, log, clock, unit="start", figure="s")
    progress.begin("headrace", 0)
    clock.now_s += 5
    progress.end("headrace", 1.25)
    assert (
        log.getvalue()
        == "bench: 1 of 2 starts (headrace, warming up; last: headrace 1.25 s), about 5 s left\n"
    )
