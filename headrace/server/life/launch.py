"""From options to a running server. What happens before the engine is started delays the first token: hardly
anything does.
"""

import atexit
import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.server.life.engine_process import ENGINE_COMMAND, EngineProcess
from headrace.server.life.signals import Signals
from headrace.server.options import ServeOptions

_BACKLOG = 2048
FIRST_RESTART_S = 1.0


class AddressUnavailable(HeadraceError):
    """The server cannot listen where it was told to."""


def run(
    options: ServeOptions,
    *,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    first_restart_s: float = FIRST_RESTART_S,
) -> int:
    """Serve until a signal; the exit code. Call it on the main thread.

    In this order: the socket listens (a client that is early waits instead of being refused), the engine
    starts, and only then does the front import what it serves with. A failed engine is started again after
    `first_restart_s`, and ever later.

    With `--log-format json` an error is logged, and the exit code is 1. Else raises HeadraceError: the port is taken,
    the chat template cannot be read, no engine can be started, the model cannot be served, the engine has ended once
    too often. Every engine, its children and its socket's folder are gone when this returns or raises.
    """
    try:
        return _run(options, engine_command, first_restart_s)
    except HeadraceError as error:
        if options.log_format == "text":
            raise
        from headrace.server.seen.logs import log_the_end

        log_the_end(error, options.log_level, options.log_format)
        return 1


def _run(options: ServeOptions, engine_command: Sequence[str], first_restart_s: float) -> int:
    chat_template = _read_template(options.chat_template)
    with bind(options.host, options.port) as listener:
        engine: EngineProcess | None = None

        def end_at_once(number: int) -> NoReturn:
            if engine is not None:
                engine.kill()
            os._exit(128 + number)

        signals = Signals(end_at_once)

        def start_engine(engine_options: EngineOptions) -> EngineProcess:
            nonlocal engine
            with signals.held():
                engine = EngineProcess(engine_options, engine_command)
            return engine

        engine_started_s = process_age_s()
        try:
            first = start_engine(options.engine)
            from headrace.server.life.front import serve
            from headrace.server.text_threads import TextThreads

            texts = TextThreads()
            code = 1
            try:
                code = serve(
                    options,
                    listener=listener,
                    first_engine=first,
                    start_engine=start_engine,
                    first_restart_s=first_restart_s,
                    signals=signals,
                    texts=texts,
                    chat_template=chat_template,
                    engine_started_s=engine_started_s,
                )
            finally:
                if texts.busy:
                    atexit.register(_exit_now, code)
            return code
        finally:
            if engine is not None:
                engine.kill()
            signals.restore()


def _exit_now(code: int) -> NoReturn:
    """End without waiting for a text that is still being encoded, nor tearing the interpreter down under it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises AddressUnavailable."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressUnavailable(
            f"The host {host!r} has no address here: {error.strerror}.", remedy="Check --host."
        ) from None
    # A name such as localhost may stand for both kinds of address; IPv4 is the one that clients always try.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}.", remedy=_bind_remedy(error)
        ) from None
    return listener


def _bind_remedy(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "No interface of this machine has that address: check --host; 0.0.0.0 is every one of them."
    if error.errno == errno.EACCES:
        return "Choose a --port of 1024 or more, or give the process the right to take a lower one."
    return "End what uses the port (`ss -ltnp` shows it) or choose another --port; 0 takes a free one."


def process_age_s() -> float:
    """Seconds since this process was started (exec), to a hundredth; 0 where the system does not tell."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return 0.0
    started_ticks = int(stat.rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK"))


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        why = error.strerror
    except UnicodeDecodeError:
        why = "it is not UTF-8 text"
    raise HeadraceError(f"The chat template {path} cannot be read: {why}.", remedy="Check --chat-template.")
