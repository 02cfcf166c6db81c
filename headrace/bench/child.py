"""The measuring process: a Scene comes on stdin, a Measurement (or why there is none) goes to stdout, as JSON.

It runs in our Python, or in that of a peer's environment, which has nothing of ours installed.
"""

import importlib
import json
import os
import sys
from typing import Any

from headrace.bench.meter import measure
from headrace.bench.scene import Scene

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
    """Do what the scene says."""
    # Loaders may print: that goes to stderr, so that stdout holds the answer alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    scene = Scene.from_json(sys.stdin.read())
    with os.fdopen(answer, "w") as out:
        json.dump(_answer(scene), out)


def _answer(scene: Scene) -> dict[str, Any]:
    loader: Any = importlib.import_module(f"headrace.bench.loaders.{scene.loader}")
    try:
        versions: dict[str, str] = loader.versions()
    except ImportError as error:
        return {"absent": str(error.name or error)}
    if scene.probe:
        return {"versions": versions}
    return measure(loader.prepare(scene)).to_dict()
