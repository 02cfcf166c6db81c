"""The measuring process: a Scene comes on stdin; READY goes to stdout when the load may begin, and when GO has come,
a Measurement. What cannot or need not be loaded is answered at once. Each is a line, the Scene and the answer in JSON.

It runs in our Python, or in that of a peer's environment, which has nothing of ours installed.
"""

import importlib
import json
import os
from typing import Any

from headrace.bench.meter import measure
from headrace.bench.scene import Scene

READY, GO = b"ready\n", b"go\n"
# What another Python is told to run, so that it finds this package in the given folder and nothing else there.
BOOTSTRAP = """\
import sys, types
package = types.ModuleType("headrace")
package.__path__ = [sys.argv[1]]
sys.modules["headrace"] = package
from headrace.bench.child import main
main()
"""


def main() -> None:
    """Do what the scene says. Ends without an answer when nobody waits for one any more."""
    # Loaders may print: that goes to stderr, so that stdout holds the answer alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "wb", buffering=0) as out, os.fdopen(0, "rb", buffering=0) as told:
        scene = Scene.from_json(told.readline().decode())
        loader: Any = importlib.import_module(f"headrace.bench.loaders.{scene.loader}")
        try:
            versions: dict[str, str] = loader.versions()
        except ImportError as error:
            _tell(out, {"absent": str(error.name or error)})
            return
        if scene.probe:
            _tell(out, {"versions": versions})
            return
        load = loader.prepare(scene)
        out.write(READY)
        if told.readline() == GO:
            _tell(out, measure(load).to_dict())


def _tell(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer).encode() + b"\n")
