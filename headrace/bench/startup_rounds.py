"""Rounds of cold starts: in each round every server starts once, in an order that moves on from round to round."""

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence

from headrace.bench.cold_start import Ask, ColdStart, Contender, Launcher, cold_start
from headrace.bench.runs import Watcher


def run_starts(
    contenders: Sequence[Contender],
    model: str,
    environ: Mapping[str, str],
    launcher: Launcher,
    rounds: int,
    watcher: Watcher,
    *,
    ask: Ask,
    timeout_s: float,
) -> dict[str, list[ColdStart]]:
    """Starts of each server, one of each round: those of the same number belong together.

    Round 0 is not counted: it warms the store and the page cache. Raises StartFailed.
    """
    results: dict[str, list[ColdStart]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        at = number % len(contenders)
        for contender in (*contenders[at:], *contenders[:at]):
            watcher.begin(contender.name, number)
            start = cold_start(contender, model, environ, launcher, ask=ask, timeout_s=timeout_s)
            if number:
                results[contender.name].append(start)
            watcher.end(contender.name, start.first_token_s)
    return results


def command_seconds(command: Sequence[str], runs: int) -> float:
    """The median of how long a command takes from exec to its end. Raises subprocess.CalledProcessError."""
    taken_s = []
    for _ in range(runs):
        begun = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        taken_s.append(time.monotonic() - begun)
    return statistics.median(taken_s)
