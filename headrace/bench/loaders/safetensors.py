"""safetensors' own load_file: it maps a local file, so a byte of each page is read until the load counts as done."""

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.loaders.packages import installed
from headrace.bench.loaders.tensors import bytes_of, touch
from headrace.bench.meter import Loaded
from headrace.bench.scene import Scene


def versions() -> dict[str, str]:
    """Raises ImportError where it is not installed."""
    return installed(("safetensors", "torch"), ("safetensors", "torch"))


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Import it; the load."""
    importlib.import_module("safetensors.torch")
    paths = [item.path for item in scene.objects]
    return lambda start: load_mapped(paths, start)


def load_mapped(paths: Sequence[str], start: float) -> Loaded:
    """Map files and read a byte of each of their pages; the first tensor is there when the first file is mapped."""
    module: Any = importlib.import_module("safetensors.torch")
    loaded: dict[str, Any] = {}
    first_s: float | None = None
    for path in paths:
        loaded |= module.load_file(path)
        first_s = first_s or time.perf_counter() - start
    for tensor in loaded.values():
        touch(tensor)
    return Loaded(loaded, bytes_of, first_s)
