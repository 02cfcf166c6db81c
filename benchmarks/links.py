"""A slow link: a network namespace behind a pair of virtual cards, of which one is shaped. Needs root and iproute2."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError

_PREFIX = "hrbench"
# Packets may come to the shaper as large as 64 KiB: a bucket must hold some of them.
_BURST = "256kb"
_QUEUE = "50ms"


@dataclass(frozen=True, slots=True)
class Link:
    """The far end of a link.

    Attributes:
        address: of the far end, as we reach it.
        within: a command that begins with these words runs there.
    """

    address: str
    within: tuple[str, ...]


@contextlib.contextmanager
def link(rate: str) -> Iterator[Link]:
    """A link that carries `rate` (tc's words: "1gbit") from its far end to us; it is gone after the block.

    Raises HeadraceError without root or iproute2.
    """
    if os.geteuid() != 0:
        raise HeadraceError("A shaped link needs root.", remedy="Run this as root, or leave the row out.")
    _remove_leftovers()
    name, net = f"{_PREFIX}{os.getpid()}", f"10.213.{os.getpid() % 250}"
    near, far = f"hr{os.getpid()}a", f"hr{os.getpid()}b"
    within = ("ip", "netns", "exec", name)
    with contextlib.ExitStack() as made:
        _run("ip", "netns", "add", name)
        made.callback(_run, "ip", "netns", "del", name)
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        made.callback(_run, "ip", "link", "del", near)
        _run("ip", "address", "add", f"{net}.1/30", "dev", near)
        _run("ip", "link", "set", near, "up")
        _run(*within, "ip", "address", "add", f"{net}.2/30", "dev", far)
        _run(*within, "ip", "link", "set", far, "up")
        _run(*within, "ip", "link", "set", "lo", "up")
        _run(*within, "tc", "qdisc", "add", "dev", far, "root", "tbf",
             "rate", rate, "burst", _BURST, "latency", _QUEUE)  # fmt: skip
        yield Link(f"{net}.2", within)


def _remove_leftovers() -> None:
    """Namespaces of runs that were killed."""
    for name in _names(["ip", "netns", "list"]):
        match = re.fullmatch(rf"{_PREFIX}(\d+)", name)
        if match and not Path("/proc", match.group(1)).exists():
            _run("ip", "netns", "del", name)


def _names(command: Sequence[str]) -> list[str]:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split()[0] for line in output.splitlines() if line.strip()]


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise HeadraceError(
            f"{command[0]} is not installed.", remedy="On Debian: apt-get install iproute2."
        ) from None
    if done.returncode != 0:
        raise HeadraceError(f"`{' '.join(command)}` failed: {done.stderr.strip()}.")
