"""The front's log: plain lines with the time on stderr, the engine's lines among them."""

import logging
import sys

LEVELS = ("debug", "info", "warning", "error", "critical")


def configure_logging(level: str) -> None:
    """Set up the root logger. `level` is one of LEVELS."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="[%(asctime)s] %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )
    if level != "debug":
        # What it says of its own start, end and connections is said by this server, or of no use.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
