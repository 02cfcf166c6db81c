"""Run:ai Model Streamer, with its own defaults; what it yields is owned by the caller (its default since 0.17)."""

import importlib
import time
from collections.abc import Callable
from typing import Any

from headrace.bench.loaders.packages import installed
from headrace.bench.loaders.tensors import bytes_of
from headrace.bench.meter import Loaded
from headrace.bench.scene import Scene


def versions() -> dict[str, str]:
    """Raises ImportError where it is not installed."""
    return installed(("runai_model_streamer", "torch"), ("runai-model-streamer", "torch"))


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Import it; the load."""
    streamer_module: Any = importlib.import_module("runai_model_streamer")
    names = [item.path or item.s3_uri for item in scene.objects]

    def load(start: float) -> Loaded:
        tensors: dict[str, Any] = {}
        first_s: float | None = None
        with streamer_module.SafetensorsStreamer() as streamer:
            streamer.stream_files(names)
            for name, tensor in streamer.get_tensors():
                if first_s is None:
                    first_s = time.perf_counter() - start
                tensors[name] = tensor
        return Loaded(tensors, bytes_of, first_s)

    return load
