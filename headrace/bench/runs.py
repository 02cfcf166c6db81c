"""Rounds of fresh processes: in each round every loader loads once, in an order that moves on from round to round."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headrace.bench.process import Contestant, LoaderFailed, answer_of
from headrace.bench.scene import Measurement, Scene
from headrace.bench.warm import WarmMemory

_USUAL_CONNECTIONS = 4
_LOOK_BYTES = 32 << 20
_FAST_BYTES_PER_S = 250e6
_CALIBRATION = (2, 4, 8)
_CALIBRATION_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a loader does not take part."""

    name: str
    why: str


class Watcher(Protocol):
    """Is told of each run."""

    def begin(self, name: str, number: int) -> None:
        """A loader, or a server, begins in round `number`; 0 is not counted."""

    def end(self, name: str, value: float, /) -> None:
        """It has ended; for a loader in GB/s, for a start in seconds."""


def _nothing() -> None:
    """Before a load nothing is to be done."""


def probe(contestant: Contestant, timeout_s: float = 60.0) -> dict[str, str] | Absent:
    """The versions of a loader's packages, or what it lacks. Raises LoaderFailed."""
    asked = replace(contestant, scene=Scene(contestant.scene.loader, probe=True))
    answer = answer_of(asked, timeout_s, _nothing)
    if "absent" in answer:
        return Absent(contestant.name, f"{contestant.python or sys.executable} has no {answer['absent']}")
    versions: dict[str, str] = answer["versions"]
    return versions


def run_once(
    contestant: Contestant, timeout_s: float, warm: WarmMemory, access_log: Path | None = None
) -> Measurement:
    """One load in a fresh process. Raises LoaderFailed.

    Args:
        warm: free when the load begins, and held again when it has ended.
        access_log: of the server: the lines that it grows by are the requests.
    """
    warm.hold()
    lines_before = _lines(access_log) if access_log else 0
    measurement = Measurement.from_dict(answer_of(contestant, timeout_s, warm.release))
    warm.hold()
    if access_log is None:
        return measurement
    return replace(measurement, requests=_lines(access_log) - lines_before)


def run_rounds(
    contestants: Sequence[Contestant],
    rounds: int,
    timeout_s: float,
    watcher: Watcher,
    warm: WarmMemory,
    access_log: Path | None = None,
) -> dict[str, list[Measurement]]:
    """Measurements of each loader, one of each round: those of the same number belong together.

    Round 0 is not counted: it warms caches and the server up.

    Raises LoaderFailed: a loader failed, or two of them did not give the same tensors.
    """
    results: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    digests: dict[str, str] = {}
    for number in range(rounds + 1):
        at = number % len(contestants)
        for contestant in (*contestants[at:], *contestants[:at]):
            watcher.begin(contestant.name, number)
            measurement = run_once(contestant, timeout_s, warm, access_log)
            if number:
                results[contestant.name].append(measurement)
            watcher.end(contestant.name, contestant.scene.size_bytes / 1e9 / measurement.wall_s)
            digests[contestant.name] = measurement.digest
            _compare(digests)
    return results


def _compare(digests: Mapping[str, str]) -> None:
    if len({digest for digest in digests.values() if digest}) > 1:
        raise LoaderFailed(
            f"The loaders gave different tensors: {', '.join(f'{n} {d}' for n, d in digests.items() if d)}.",
            remedy="One of them read wrong bytes, or the objects were replaced meanwhile: run again.",
        )


def calibrated(bare: Contestant, timeout_s: float, warm: WarmMemory) -> Contestant:
    """The bare loop with the number of connections that is fastest on the first part of the objects.

    Where a few connections are slow the network is the limit, whatever their number: then it is not looked for.
    """

    def rate(connections: int, limit_bytes: int) -> float:
        scene = replace(bare.scene, connections=connections, limit_bytes=limit_bytes)
        measurement = run_once(replace(bare, scene=scene), timeout_s, warm)
        return measurement.tensor_bytes / measurement.wall_s

    best = _USUAL_CONNECTIONS
    if rate(best, _LOOK_BYTES) > _FAST_BYTES_PER_S:
        # Twice: the first of them finds colder caches.
        rates = {count: max(rate(count, _CALIBRATION_BYTES) for _ in range(2)) for count in _CALIBRATION}
        best = max(rates, key=rates.__getitem__)
    return replace(bare, scene=replace(bare.scene, connections=best))


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
