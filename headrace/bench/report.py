"""From measurements to medians, spreads and ratios, and to a table. Pure functions."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.scene import Measurement


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of some values."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """One loader's runs.

    Attributes:
        gb_per_s: 10⁹ bytes of the objects per second.
        cpu_s_per_gb: CPU seconds, user and system.
        peak_bytes: memory at its peak, less what the process had before.
        over_bytes: the same less the bytes of the tensors themselves.
        first_tensor_s: None where it has no meaning.
        requests: None where nobody counted.
        retries, hedges: None where the loader does not tell.
        connections: what it used; None where it does not tell.
    """

    gb_per_s: Spread
    cpu_s_per_gb: Spread
    user_s_per_gb: float
    system_s_per_gb: float
    peak_bytes: Spread
    over_bytes: Spread
    first_tensor_s: Spread | None
    requests: Spread | None
    facts: Mapping[str, float]


def summarize(runs: Sequence[Measurement], size_bytes: int) -> Summary:
    """The runs of one loader over objects of so many bytes."""
    gigabytes = size_bytes / 1e9
    first = [run.first_tensor_s for run in runs if run.first_tensor_s is not None]
    requests = [float(run.requests) for run in runs if run.requests is not None]
    names = sorted({name for run in runs for name in run.facts})
    return Summary(
        gb_per_s=spread([gigabytes / run.wall_s for run in runs]),
        cpu_s_per_gb=spread([run.cpu_s / gigabytes for run in runs]),
        user_s_per_gb=statistics.median(run.user_s for run in runs) / gigabytes,
        system_s_per_gb=statistics.median(run.system_s for run in runs) / gigabytes,
        peak_bytes=spread([run.peak_bytes for run in runs]),
        over_bytes=spread([run.peak_bytes - run.tensor_bytes for run in runs]),
        first_tensor_s=spread(first) if first else None,
        requests=spread(requests) if requests else None,
        facts={name: statistics.median(run.facts.get(name, 0.0) for run in runs) for name in names},
    )


def ratios(
    ours: Sequence[Measurement], others: Sequence[Measurement], of: Callable[[Measurement], float]
) -> Spread | None:
    """ours / other, round by round; None where another's value is 0."""
    pairs = [(of(own), of(other)) for own, other in zip(ours, others, strict=True)]
    return spread([own / other for own, other in pairs]) if all(other for _, other in pairs) else None


def table(summaries: Mapping[str, Summary], bare: str) -> list[str]:
    """A line per loader, aligned; rates as "median (min – max)"."""
    rows = [("loader", "GB/s", f"of {bare}", "CPU s/GB", "memory over tensors", "first tensor", "requests")]
    for name, summary in summaries.items():
        rate, limit = summary.gb_per_s, summaries[bare].gb_per_s.median
        first, requests = summary.first_tensor_s, summary.requests
        rows.append(
            (
                name,
                f"{rate.median:.3g} ({rate.min:.3g} – {rate.max:.3g})",
                f"{rate.median / limit:.2f}",
                f"{summary.cpu_s_per_gb.median:.2f}",
                f"{summary.over_bytes.median / (1 << 20):.0f} MiB",
                f"{first.median:.3f} s" if first else "–",
                f"{requests.median:.0f}" if requests else "–",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
