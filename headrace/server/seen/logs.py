"""The front's log: lines with the time on stderr, the engine's lines among them."""

import logging
import os
import sys
import threading
from types import TracebackType

from headrace.errors import HeadraceError
from headrace.server.seen.log_format import JsonFormatter, TextFormatter
from headrace.server.seen.status_line import AboveStatusLine, StatusLine

LEVELS = ("debug", "info", "warning", "error", "critical")

_log = logging.getLogger("headrace")


def configure_logging(level: str, log_format: str = "text") -> StatusLine:
    """Set up the root logger; the status line that its lines go above.

    `level` is one of LEVELS. With `log_format` "json" every line is a JSON object, and what Python would write to
    stderr by itself (warnings, exceptions that nobody caught) goes through the log.
    """
    status = StatusLine(sys.stderr, enabled=log_format == "text")
    handler = AboveStatusLine(sys.stderr, status)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
    if level != "debug":
        # What it says of its own start, end and connections is said by this server, or of no use.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
    return status


def log_the_end(error: HeadraceError, level: str, log_format: str) -> None:
    """Say as the log's last line, whether it has begun or not, why the server cannot go on.

    HEADRACE_DEBUG adds the traceback, as it does to errors of the command line.
    """
    configure_logging(level, log_format)
    debug = os.environ.get("HEADRACE_DEBUG", "") not in ("", "0")
    _log.critical("%s", error, exc_info=error if debug else None)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("The server ends with a defect: %s", kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "unknown"
    error = args.exc_value if args.exc_value is not None else args.exc_type()
    _log.critical(
        "The thread %s ended with a defect.", name, exc_info=(args.exc_type, error, args.exc_traceback)
    )
