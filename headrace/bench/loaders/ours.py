"""Headrace's own streamer, with its defaults."""

import importlib
import time
from collections.abc import Callable
from typing import Any

from headrace.bench.loaders.packages import installed
from headrace.bench.loaders.tensors import bytes_of
from headrace.bench.meter import Loaded
from headrace.bench.scene import Scene


def versions() -> dict[str, str]:
    """Its own and torch's."""
    return installed(("headrace", "torch"), ("headrace", "torch"))


# What a load imports when it knows its store: other loaders have theirs from the start.
_STORES = {
    "file": ("headrace.store.local.store",),
    "http": ("headrace.store.web.store",),
    "https": ("headrace.store.web.store",),
    "s3": ("headrace.store.s3.store",),
    "gs": ("headrace.store.gcs.store",),
    "az": ("headrace.store.azure.store",),
}
_SIGNING = ("botocore.auth", "botocore.awsrequest")


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Import it, torch and what the store needs; the load."""
    importlib.import_module("torch")
    from headrace.stream.library.streamer import SafetensorsStreamer

    schemes = {item.uri.partition("://")[0] if "://" in item.uri else "file" for item in scene.objects}
    for scheme in schemes:
        for module in (*_STORES.get(scheme, ()), *(_SIGNING if scene.signed else ())):
            importlib.import_module(module)
    names = [item.uri for item in scene.objects]

    def load(start: float) -> Loaded:
        tensors: dict[str, Any] = {}
        first_s: float | None = None
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(names)
            for name, tensor in streamer.get_tensors():
                if first_s is None:
                    first_s = time.perf_counter() - start
                tensors[name] = tensor
            progress = streamer.progress()
        assert progress is not None
        # Beside the plan's reads each object was looked up once.
        facts = {
            "requests": progress.requests + len(names),
            "retries": progress.retries,
            "hedges": progress.hedges,
            "hedged_bytes": progress.hedged_bytes,
        }
        return Loaded(tensors, bytes_of, first_s, progress.requests + len(names), facts=facts)

    return load
