"""Processors: busy is a machine without idle time, much of which went to the transfer."""

from pathlib import Path

import pytest

from headrace.stream.transfer.processors import Processors, idle_and_all


class Stat:
    """A /proc/stat that goes on as told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._work = self._idle = self._waiting = 1_000
        self.pass_(0, 0, 0)

    def pass_(self, work: int, idle: int, waiting: int = 0) -> None:
        """So many ticks of all processors pass."""
        self._work, self._idle, self._waiting = self._work + work, self._idle + idle, self._waiting + waiting
        self.path.write_text(
            f"cpu  {self._work} 0 0 {self._idle} {self._waiting} 0 0 0 0 0\ncpu0 1 0 0 1 1 0 0 0 0 0\nintr 5 5 5\n"
        )


@pytest.fixture
def stat(tmp_path: Path) -> Stat:
    return Stat(tmp_path / "stat")


def test_the_line_of_all_processors_is_read() -> None:
    assert idle_and_all("cpu  10 1 5 70 9 2 3 4 50 60\ncpu0 1 2 3\n") == (79, 104)


@pytest.mark.parametrize(
    ("work", "idle", "waiting", "busy"),
    [(100, 0, 0, True), (95, 5, 0, True), (80, 20, 0, False), (80, 0, 20, False), (0, 0, 0, False)],
)
def test_a_machine_without_idle_time_is_busy(
    stat: Stat, work: int, idle: int, waiting: int, busy: bool
) -> None:
    processors = Processors(2, str(stat.path))
    processors.are_busy(1.0, 1.0)
    stat.pass_(work, idle, waiting)
    assert processors.are_busy(1.0, 1.0) is busy


def test_another_programs_work_does_not_count(stat: Stat) -> None:
    processors = Processors(2, str(stat.path))
    for _ in range(3):
        stat.pass_(100, 0)
        assert not processors.are_busy(0.1, 1.0)


def test_until_it_was_looked_at_twice_a_fast_transfer_waits(stat: Stat) -> None:
    processors = Processors(2, str(stat.path))
    assert processors.are_busy(1.0, 1.0)
    stat.pass_(50, 50)
    assert not processors.are_busy(1.0, 1.0)
    assert not processors.are_busy(0.1, 1.0)  # an old look is forgotten
    stat.pass_(50, 50)
    assert processors.are_busy(1.0, 1.0)


def test_where_nothing_is_told_nothing_is_held_back(tmp_path: Path) -> None:
    assert not Processors(2, str(tmp_path / "none")).are_busy(2.0, 1.0)


def test_this_machine_tells() -> None:
    idle, total = idle_and_all(Path("/proc/stat").read_text())
    assert 0 <= idle <= total
