"""The start-up table's rows."""

import time

import pytest

from headrace.ipc.messages import PhaseTime
from headrace.ipc.timeline import Timeline


def test_phases_come_in_the_order_of_their_start_not_of_their_end() -> None:
    timeline = Timeline(time.monotonic())
    timeline.add("late", 2.0, 3.0)
    timeline.add("early, long", 0.0, 9.0)
    assert timeline.phases() == (PhaseTime("early, long", 0.0, 9.0), PhaseTime("late", 2.0, 3.0))


def test_a_phase_spans_its_body() -> None:
    timeline = Timeline(time.monotonic())
    with timeline.phase("work"):
        within = timeline.now()
    (phase,) = timeline.phases()
    assert phase.name == "work"
    assert 0 <= phase.start_s <= within <= phase.end_s <= timeline.now()


def test_a_phase_that_failed_is_not_recorded() -> None:
    timeline = Timeline(time.monotonic())
    with pytest.raises(ZeroDivisionError), timeline.phase("work"):
        _ = 1 // 0
    assert timeline.phases() == ()
