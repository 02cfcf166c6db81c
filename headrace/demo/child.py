"""Child processes that never outlive us: own process group, a death signal, an end that is certain."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    inherited_files: Sequence[int] = (),
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start `command` without standard input and in a session of its own.

    A terminal's Ctrl-C therefore reaches only us, and we end our children in the right order. On Linux the
    child gets `death_signal` when the *thread* that called this ends, however it ends: call it from a thread
    that lives as long as the child should. Descriptors in `inherited_files` stay open in the child.
    """
    # An exception that a signal handler raises inside a fork is dropped by Python's own at-fork callbacks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    process = None
    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=inherited_files,
            start_new_session=True,
            preexec_fn=partial(_prepare_child, mask, death_signal, os.getpid()),
        )
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # a signal that waited raises here
        except BaseException:
            if process is not None:
                end_child(process)
            raise
    return process


def end_child(process: subprocess.Popen[bytes], *, timeout_s: float = 10.0) -> int:
    """SIGTERM, then SIGKILL to the child's whole group after `timeout_s`. The exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _prepare_child(mask: set[int | signal.Signals], death_signal: signal.Signals, parent: int) -> None:
    """Runs in the child before its exec."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # the parent ended before the request was made
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
