"""From cold starts to medians, spreads and ratios, and to tables. Pure functions."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.cold_start import ColdStart, Phase
from headrace.bench.report import Spread, spread


@dataclass(frozen=True, slots=True)
class StartSummary:
    """One server's starts; seconds from exec. None where the server does not tell.

    Attributes:
        health_s: the first 200 of /health.
        first_byte_s, last_byte_s: of the weights.
        first_token_s: of the client that asked.
        after_last_byte_s: from the last byte to that token.
        same_text: every answer is the one that the same server gave to the same request later.
        phases: the table in medians.
    """

    health_s: Spread | None
    first_byte_s: Spread | None
    last_byte_s: Spread | None
    ready_s: Spread | None
    first_token_s: Spread
    after_last_byte_s: Spread | None
    same_text: bool
    phases: tuple[Phase, ...]


# A column's head, and its figure.
_COLUMNS: tuple[tuple[str, Callable[[StartSummary], Spread | None]], ...] = (
    ("first token", lambda summary: summary.first_token_s),
    ("/health", lambda summary: summary.health_s),
    ("first byte", lambda summary: summary.first_byte_s),
    ("last byte", lambda summary: summary.last_byte_s),
    ("ready", lambda summary: summary.ready_s),
    ("token after last byte", lambda summary: summary.after_last_byte_s),
)


def summarize_starts(starts: Sequence[ColdStart]) -> StartSummary:
    """The starts of one server, of which there is at least one."""
    first_token_s = _spread(starts, lambda start: start.first_token_s)
    assert first_token_s is not None
    return StartSummary(
        health_s=_spread(starts, lambda start: start.health_s),
        first_byte_s=_spread(starts, lambda start: start.first_byte_s),
        last_byte_s=_spread(starts, lambda start: start.last_byte_s),
        ready_s=_spread(starts, lambda start: start.ready_s),
        first_token_s=first_token_s,
        after_last_byte_s=_spread(starts, lambda start: start.after_last_byte_s),
        same_text=all(start.text == start.text_again for start in starts),
        phases=median_phases(starts),
    )


def median_phases(starts: Sequence[ColdStart]) -> tuple[Phase, ...]:
    """Each phase's median start, end and hidden share, over the starts that have it, by its start.

    A name that comes more than once in a start stands for as many phases.
    """
    found: dict[tuple[str, int], list[Phase]] = {}
    for start in starts:
        seen: dict[str, int] = {}
        for phase in start.phases:
            seen[phase.name] = seen.get(phase.name, 0) + 1
            found.setdefault((phase.name, seen[phase.name]), []).append(phase)
    medians = []
    for (name, _), phases in found.items():
        shares = [phase.hidden_share for phase in phases if phase.hidden_share is not None]
        medians.append(
            Phase(
                name,
                statistics.median(phase.start_s for phase in phases),
                statistics.median(phase.end_s for phase in phases),
                statistics.median(shares) if shares else None,
            )
        )
    return tuple(sorted(medians, key=lambda phase: phase.start_s))


def middle_start(starts: Sequence[ColdStart]) -> ColdStart:
    """The start whose first token came after the median time; of two middle ones the faster."""
    return sorted(starts, key=lambda start: start.first_token_s)[(len(starts) - 1) // 2]


def ratios_to(ours: Sequence[ColdStart], others: Sequence[ColdStart]) -> Spread:
    """The other's time to the first token ÷ ours, round by round."""
    return spread([other.first_token_s / own.first_token_s for own, other in zip(ours, others, strict=True)])


def starts_table(summaries: Mapping[str, StartSummary]) -> list[str]:
    """A line per server, aligned; seconds as "median (min – max)". What no server tells has no column."""
    columns = [
        (head, figure) for head, figure in _COLUMNS if any(figure(each) for each in summaries.values())
    ]
    rows = [["server", *(head for head, _ in columns)]]
    for name, summary in summaries.items():
        rows.append([name, *(_seconds(figure(summary)) for _, figure in columns)])
    return _aligned(rows)


def phases_table(phases: Sequence[Phase]) -> list[str]:
    """The start-up table in medians, aligned; seconds, and the share that hid behind the transfer."""
    rows = [["phase", "start", "end", "seconds", "hidden"]]
    for phase in phases:
        hidden = "–" if phase.hidden_share is None else f"{100 * phase.hidden_share:.0f} %"
        times = (phase.start_s, phase.end_s, phase.end_s - phase.start_s)
        rows.append([phase.name, *(f"{time_s:.2f}" for time_s in times), hidden])
    return _aligned(rows)


def _spread(starts: Sequence[ColdStart], figure: Callable[[ColdStart], float | None]) -> Spread | None:
    values = [value for value in map(figure, starts) if value is not None]
    return spread(values) if values else None


def _seconds(value: Spread | None) -> str:
    if value is None:
        return "–"
    # Two clocks are compared: what is a few milliseconds below zero is zero.
    median, least, most = (f"{round(figure, 2) + 0.0:.2f}" for figure in (value.median, value.min, value.max))
    return f"{median} ({least} – {most})"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
