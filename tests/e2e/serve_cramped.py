"""The server with a real engine on a machine without room for a second model: `python serve_cramped.py`, and flags."""

import importlib
import os
import sys
from typing import Any

from headrace.cli import serve
from headrace.cli.main import guarded
from headrace.cli.parser import Parser

_AS_ENGINE = "--as-engine"


def _engine() -> int:
    from headrace.engine import __main__ as engine
    from headrace.stream.library.memory_room import Room

    room: Any = importlib.import_module("headrace.engine.change.room")
    room.memory_room = lambda: Room(1 << 20, "the machine's available memory")
    return engine.main()


def _serve() -> int:
    from headrace.server.life.launch import run

    parser = Parser()
    serve.add_flags(parser)
    options = serve.serve_options(parser.parse_args(), os.environ)
    return guarded(lambda: run(options, engine_command=(sys.executable, __file__, _AS_ENGINE)))


if __name__ == "__main__":
    sys.exit(_engine() if sys.argv[1:] == [_AS_ENGINE] else _serve())
