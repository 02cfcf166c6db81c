"""The rows of docs/benchmarks.md from what `headrace bench load --json` measured, each goal with what was reached."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MEMORY_GOAL_MIB = 256
PLACES = {
    "http": "http, loopback (nginx)",
    "signed": "signed requests, loopback (nanio)",
    "https": "https, loopback (nginx)",
    "local": "local file, warm page cache",
    "1gbit": "link of 1 Gbit/s",
    "100mbit-50ms": "link of 100 Mbit/s, 50 ms away",
    "small": "many tensors of 1 KiB",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row is to reach: a median of paired ratios, ours to another's.

    Attributes:
        other: a loader, or "wire".
        of: "gb_per_s" or "cpu_s".
        bound: at least (of rates) or at the most (of CPU seconds) so much.
    """

    other: str
    of: str
    bound: float


GOALS: Mapping[str, tuple[Goal, ...]] = {
    "http": (Goal("wire", "gb_per_s", 0.85), Goal("runai", "gb_per_s", 4), Goal("runai", "cpu_s", 1 / 8)),
    "signed": (Goal("wire", "gb_per_s", 0.85), Goal("runai", "gb_per_s", 4), Goal("runai", "cpu_s", 1 / 8)),
    "https": (
        Goal("wire", "gb_per_s", 0.9),
        Goal("obstore", "gb_per_s", 1),
        Goal("obstore", "cpu_s", 1),
        Goal("runai", "gb_per_s", 1.8),
    ),
    "local": (Goal("runai", "gb_per_s", 1.3), Goal("wire", "gb_per_s", 0.8)),
    "1gbit": (Goal("wire", "gb_per_s", 0.95),),
    "100mbit-50ms": (Goal("wire", "gb_per_s", 0.95),),
    "small": (Goal("runai", "gb_per_s", 10),),
}


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Markdown: what each loader did, then each goal."""
    if not results:
        return ["Nothing was measured."]
    lines = [
        "| where | loader | GB/s: median (min – max) | CPU s per GB | memory over the tensors | first tensor | requests |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, report in results.items():
        place = f"{PLACES[name]}, {report['bytes'] / 1e9:.2f} GB"
        for loader, facts in report["loaders"].items():
            lines.append(f"| {place} | {_cells(loader, facts, name)} |")
            place = ""
    lines += ["", "| where | goal | measured: median (min – max) | reached |", "|---|---|---|---|"]
    for name, report in results.items():
        for goal in GOALS[name]:
            lines.append(f"| {PLACES[name]} | {_goal(goal, report['ratios'])} |")
        over = report["loaders"]["headrace"]["over_bytes"]
        lines.append(
            f"| {PLACES[name]} | memory over the tensors ≤ {_MEMORY_GOAL_MIB} MiB | {_spread(over, _mib)} "
            f"| {_yes(over['max'] <= _MEMORY_GOAL_MIB << 20)} |"
        )
    runs, average = (
        {report["runs"] for report in results.values()},
        max(report["load_average"] for report in results.values()),
    )
    lines += [
        "",
        f"Rounds: {', '.join(map(str, sorted(runs)))}; load average at the end of a row at the most {average:.1f}.",
    ]
    lines += [
        f"{PLACES[name]}: {peer} is missing: {why}."
        for name, report in results.items()
        for peer, why in report["absent"].items()
    ]
    return lines


def _cells(loader: str, facts: Mapping[str, Any], row: str) -> str:
    first, requests = facts["first_tensor_s"], facts["requests"]
    if loader == "wire":
        unit = "threads" if row == "local" else "connections"
        loader = f"the bare loop, {facts['facts'].get('connections', 0):.0f} {unit}"
    return " | ".join(
        (
            f"**{loader}**" if loader == "headrace" else loader,
            _spread(facts["gb_per_s"], lambda rate: f"{rate:.3g}"),
            f"{facts['cpu_s_per_gb']['median']:.2f}",
            _mib(facts["over_bytes"]["median"]),
            f"{first['median']:.2f} s" if first else "–",
            f"{requests['median']:.0f}" if requests else "–",
        )
    )


def _goal(goal: Goal, ratios: Mapping[str, Any]) -> str:
    what = "rate" if goal.of == "gb_per_s" else "CPU seconds"
    sign = "≥" if goal.of == "gb_per_s" else "≤"
    told = f"{what} {sign} {goal.bound:.3g} × {'the bare loop' if goal.other == 'wire' else goal.other}"
    measured = ratios.get(goal.other, {}).get(goal.of)
    if measured is None:
        return f"{told} | – | not measured"
    median = measured["median"]
    reached = median >= goal.bound if goal.of == "gb_per_s" else median <= goal.bound
    return f"{told} | {_spread(measured, lambda ratio: f'{ratio:.3g}')} | {_yes(reached)}"


def _spread(spread: Mapping[str, float], show: Callable[[float], str]) -> str:
    return f"{show(spread['median'])} ({show(spread['min'])} – {show(spread['max'])})"


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _yes(reached: bool) -> str:
    return "yes" if reached else "**no**"
