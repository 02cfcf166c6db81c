"""The start-up table: overlaps with the transfer, gaps, and its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ipc.messages import PhaseTime
from headrace.server.seen.startup_table import (
    LEAST_GAP_S,
    UNNAMED,
    PhaseRow,
    on_one_clock,
    startup_rows,
    table_lines,
)


def share_of(name: str, *phases: PhaseTime) -> float | None:
    rows = startup_rows(phases, max(phase.end_s for phase in phases))
    return next(row.hidden_share for row in rows if row.name == name)


def test_the_share_that_hid_is_the_overlap_with_the_transfer() -> None:
    transfer = PhaseTime("transfer", 1.0, 3.0)
    assert share_of("import torch", PhaseTime("import torch", 0.0, 4.0), transfer) == 0.5
    assert share_of("import torch", PhaseTime("import torch", 1.5, 2.0), transfer) == 1.0
    assert share_of("list", PhaseTime("list", 0.0, 1.0), transfer) == 0.0


def test_transfers_that_overlap_hide_a_moment_once() -> None:
    twice = PhaseTime("transfer", 0.0, 2.0), PhaseTime("transfer", 1.0, 2.0), PhaseTime("transfer", 3.0, 4.0)
    assert share_of("import torch", PhaseTime("import torch", 0.0, 4.0), *twice) == 0.75


def test_the_transfer_itself_and_the_wait_for_it_hide_behind_nothing() -> None:
    phases = PhaseTime("transfer", 0.0, 2.0), PhaseTime("wait for weights", 1.0, 2.0)
    assert share_of("transfer", *phases) is None
    assert share_of("wait for weights", *phases) is None


def test_a_phase_without_length_has_no_share() -> None:
    assert share_of("list", PhaseTime("list", 1.0, 1.0), PhaseTime("transfer", 0.0, 2.0)) is None


def test_every_silent_stretch_has_a_row_of_its_own() -> None:
    rows = startup_rows([PhaseTime("list", 0.5, 1.0), PhaseTime("warm up", 2.0, 3.0)], 4.0)
    assert [(row.name, row.start_s, row.end_s) for row in rows] == [
        (UNNAMED, 0.0, 0.5),
        ("list", 0.5, 1.0),
        (UNNAMED, 1.0, 2.0),
        ("warm up", 2.0, 3.0),
        (UNNAMED, 3.0, 4.0),
    ]


def test_a_short_gap_and_one_that_another_phase_covers_have_none() -> None:
    phases = [PhaseTime("list", 0.125, 1.0), PhaseTime("transfer", 0.5, 3.0), PhaseTime("warm up", 2.5, 3.0)]
    assert [row.name for row in startup_rows(phases, 3.125)] == ["list", "transfer", "warm up"]


TIMES = st.floats(0, 100).map(lambda value: round(value, 3))
PHASES = st.lists(st.builds(lambda a, b: PhaseTime("work", min(a, b), max(a, b)), TIMES, TIMES))


@pytest.mark.property
@given(PHASES, TIMES)
def test_with_its_unnamed_rows_a_table_covers_the_whole_start(
    phases: list[PhaseTime], ready_s: float
) -> None:
    covered_s = 0.0
    for row in startup_rows(phases, ready_s):
        assert row.start_s <= covered_s + LEAST_GAP_S + 1e-9
        covered_s = max(covered_s, row.end_s)
    assert covered_s >= ready_s - LEAST_GAP_S - 1e-9


def test_the_engines_phases_are_told_on_the_clock_that_began_with_exec() -> None:
    front = [PhaseTime("front: imports", 0.25, 0.5)]
    assert on_one_clock([PhaseTime("list", 0.125, 0.5)], 0.25, front) == (
        PhaseTime("front: until the engine is started", 0.0, 0.25),
        PhaseTime("front: imports", 0.25, 0.5),
        PhaseTime("list", 0.375, 0.75),
    )


def test_the_clock_of_an_engine_that_was_started_again_begins_with_it() -> None:
    assert on_one_clock([PhaseTime("list", 0.0, 0.5)], 0.0) == (PhaseTime("list", 0.0, 0.5),)


def test_the_table_is_aligned() -> None:
    rows = [
        PhaseRow("front: until the engine is started", 0.0, 0.25, 0.25, 0.0),
        PhaseRow("transfer", 0.75, 12.5, 11.75, None),
        PhaseRow("import torch", 0.75, 2.0, 1.25, 1.0),
    ]
    assert table_lines(rows) == [
        "phase                                 start      end  seconds  hidden",
        "front: until the engine is started     0.00     0.25     0.25     0 %",
        "transfer                               0.75    12.50    11.75       –",
        "import torch                           0.75     2.00     1.25   100 %",
    ]
