"""The AWS command line, then a mapping: `aws s3 cp` into a temporary folder, as people do without a streamer."""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.bench.loaders.packages import installed
from headrace.bench.loaders.safetensors import load_mapped
from headrace.bench.meter import Loaded
from headrace.bench.scene import Scene


def versions() -> dict[str, str]:
    """Raises ImportError where it, safetensors or torch is not installed."""
    return installed(("awscli", "safetensors", "torch"), ("awscli", "safetensors", "torch"))


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Import what maps the files; the load, whose copy is gone when the process ends."""
    importlib.import_module("safetensors.torch")
    folder = tempfile.TemporaryDirectory(prefix="headrace-bench-aws-")
    endpoint = ["--endpoint-url", scene.endpoint_url] if scene.endpoint_url else []

    def load(start: float) -> Loaded:
        paths = []
        for number, item in enumerate(scene.objects):
            path = str(Path(folder.name) / f"{number}.safetensors")
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "awscli",
                    *endpoint,
                    "s3",
                    "cp",
                    "--only-show-errors",
                    item.s3_uri,
                    path,
                ],
                check=True,
            )
            paths.append(path)
        return load_mapped(paths, start)

    return load
