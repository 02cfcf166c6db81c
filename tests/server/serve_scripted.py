"""`headrace serve` with the scripted engine: the real command but for the engine's module, and for less patience before a restart."""

import os
import sys
from pathlib import Path

import msgspec

from headrace.cli.main import guarded
from headrace.server.life.launch import run
from headrace.server.options import ServeOptions

ENGINE = (sys.executable, str(Path(__file__).parent / "scripted_engine.py"))
# Short enough for many tests; one that looks at what is told meanwhile wants longer.
FIRST_RESTART_S = float(os.environ.get("FIRST_RESTART_S", "0.1"))

if __name__ == "__main__":
    options = msgspec.json.decode(sys.argv[1], type=ServeOptions)
    sys.exit(guarded(lambda: run(options, engine_command=ENGINE, first_restart_s=FIRST_RESTART_S)))
