"""The front's log: plain lines with the time on stderr, the engine's lines among them."""

import logging
import sys

from headrace.server.status_line import AboveStatusLine, StatusLine

LEVELS = ("debug", "info", "warning", "error", "critical")


def configure_logging(level: str) -> StatusLine:
    """Set up the root logger; the status line that its lines go above. `level` is one of LEVELS."""
    status = StatusLine(sys.stderr)
    logging.basicConfig(
        handlers=[AboveStatusLine(sys.stderr, status)],
        level=level.upper(),
        format="[%(asctime)s] %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )
    if level != "debug":
        # What it says of its own start, end and connections is said by this server, or of no use.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
    return status
