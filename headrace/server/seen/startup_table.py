"""The start-up table: which phase took how long, how much of it hid behind the transfer, and what has no name. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from headrace.ipc.messages import PhaseTime

TRANSFER = "transfer"
UNNAMED = "(unnamed)"
# A stretch that no phase covers gets a row of its own from this length on, in seconds.
LEAST_GAP_S = 0.2
# These are the transfer itself, once as it happens and once as it is waited for: nothing that hides behind it.
_NOT_HIDDEN = (TRANSFER, "wait for weights")

Interval = tuple[float, float]


class PhaseRow(msgspec.Struct, frozen=True):
    """One row. Times are seconds from the server's exec, or from its engine's where that was started again.

    Attributes:
        hidden_share: what part of it passed while weights were moving, 0 to 1; None for the transfer itself, and for
            a phase without length.
    """

    name: str
    start_s: float
    end_s: float
    seconds: float
    hidden_share: float | None


def on_one_clock(
    engine: Iterable[PhaseTime], engine_started_s: float, front: Iterable[PhaseTime] = ()
) -> tuple[PhaseTime, ...]:
    """The phases of both processes on the front's clock, with what the front did first in front of them.

    Args:
        engine: in seconds from the engine's exec.
        engine_started_s: the engine's exec on the front's clock; 0 where that clock began with the engine.
        front: the front's own, on its clock.
    """
    phases = [
        PhaseTime(phase.name, phase.start_s + engine_started_s, phase.end_s + engine_started_s)
        for phase in engine
    ]
    phases += front
    if engine_started_s > 0:
        phases.append(PhaseTime("front: until the engine is started", 0.0, engine_started_s))
    return tuple(sorted(phases, key=lambda phase: phase.start_s))


def startup_rows(phases: Sequence[PhaseTime], ready_s: float) -> tuple[PhaseRow, ...]:
    """The rows by their start, with a row "(unnamed)" for each stretch from 0 to ready that has no other.

    Args:
        ready_s: when the server was ready.
    """
    moving = _union((phase.start_s, phase.end_s) for phase in phases if phase.name == TRANSFER)
    rows = [_row(phase, moving) for phase in phases]
    covered = _union((phase.start_s, phase.end_s) for phase in phases)
    for start_s, end_s in _gaps(covered, ready_s):
        if end_s - start_s >= LEAST_GAP_S:
            rows.append(_row(PhaseTime(UNNAMED, start_s, end_s), moving))
    return tuple(sorted(rows, key=lambda row: row.start_s))


def table_lines(rows: Sequence[PhaseRow]) -> list[str]:
    """The table as aligned text: seconds, and the hidden share in percent."""
    width = max([len(row.name) for row in rows] + [len("phase")])
    lines = [f"{'phase':<{width}}  {'start':>7}  {'end':>7}  {'seconds':>7}  {'hidden':>6}"]
    for row in rows:
        hidden = "–" if row.hidden_share is None else f"{100 * row.hidden_share:.0f} %"
        lines.append(
            f"{row.name:<{width}}  {row.start_s:7.2f}  {row.end_s:7.2f}  {row.seconds:7.2f}  {hidden:>6}"
        )
    return lines


def _row(phase: PhaseTime, moving: Sequence[Interval]) -> PhaseRow:
    seconds = phase.end_s - phase.start_s
    share = None
    if seconds > 0 and phase.name not in _NOT_HIDDEN:
        overlaps = (min(phase.end_s, end_s) - max(phase.start_s, start_s) for start_s, end_s in moving)
        share = min(1.0, sum(max(0.0, overlap) for overlap in overlaps) / seconds)
    return PhaseRow(phase.name, phase.start_s, phase.end_s, seconds, share)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretches without overlaps, by their start."""
    found: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def _gaps(covered: Sequence[Interval], until_s: float) -> list[Interval]:
    """What the stretches leave open between 0 and `until_s`."""
    ends = [0.0, *(end_s for _, end_s in covered)]
    starts = [*(start_s for start_s, _ in covered), until_s]
    return [(end_s, start_s) for end_s, start_s in zip(ends, starts, strict=True) if start_s > end_s]
