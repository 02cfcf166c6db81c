"""obstore, the Python face of Rust's object_store: ranged reads by threads, copied to where the tensors lie.

It knows no safetensors: the headers are read first, then the rest in ranges of 8 MiB by four threads, each range
copied from the library's own buffer into one mapping per object, of which the tensors are views.
"""

import importlib
import json
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.bench.loaders.packages import installed
from headrace.bench.meter import Loaded
from headrace.bench.scene import Object, Scene
from headrace.bench.sharing import share

CHUNK_BYTES = 8 << 20
THREADS = 4


@dataclass(frozen=True, slots=True)
class _File:
    """One object: where it is, what its header says, and the memory for what follows the header."""

    store: Any
    path: str
    header: dict[str, tuple[int, int]]
    data_start: int
    view: memoryview


def versions() -> dict[str, str]:
    """Raises ImportError where it is not installed."""
    return installed(("obstore",), ("obstore",))


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Make its stores; the load."""
    obstore: Any = importlib.import_module("obstore")
    places = [(*_place(scene, item), item.size_bytes) for item in scene.objects]
    threads = scene.connections or THREADS

    def load(start: float) -> Loaded:
        files = [_open(obstore, *place) for place in places]
        chunks = [
            (file, at, min(at + CHUNK_BYTES, file.data_start + len(file.view)))
            for file in files
            for at in range(file.data_start, file.data_start + len(file.view), CHUNK_BYTES)
        ]
        # The first tensor is there when the chunks that hold it are.
        wanted = min(end for _, end in files[0].header.values()) + files[0].data_start if files else 0
        missing = {(files[0].path, at) for file, at, _ in chunks if file is files[0] and at < wanted}
        lock, first = threading.Lock(), list[float]()

        def work(queue: Iterator[tuple[_File, int, int]]) -> None:
            for file, at, end in queue:
                data = obstore.get_range(file.store, file.path, start=at, end=end)
                file.view[at - file.data_start : end - file.data_start] = memoryview(data)
                with lock:
                    missing.discard((file.path, at))
                    if not missing and not first:
                        first.append(time.perf_counter() - start)

        share(work, chunks, threads)
        tensors = {
            name: file.view[start_at:end_at]
            for file in files
            for name, (start_at, end_at) in file.header.items()
        }
        return Loaded(tensors, memoryview, first[0] if first else None, 2 * len(files) + len(chunks))

    return load


def _open(obstore: Any, store: Any, path: str, size_bytes: int) -> _File:
    length = int.from_bytes(bytes(obstore.get_range(store, path, start=0, end=8)), "little")
    header = json.loads(bytes(obstore.get_range(store, path, start=8, end=8 + length)))
    header.pop("__metadata__", None)
    spans = {name: (entry["data_offsets"][0], entry["data_offsets"][1]) for name, entry in header.items()}
    data_start = 8 + length
    memory = mmap.mmap(-1, max(size_bytes - data_start, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _File(store, path, spans, data_start, memoryview(memory)[: size_bytes - data_start])


def _place(scene: Scene, item: Object) -> tuple[Any, str]:
    """obstore's store for an object, and the object's path in it."""
    stores: Any = importlib.import_module("obstore.store")
    if item.path:
        return stores.LocalStore(str(Path(item.path).parent)), Path(item.path).name
    options: dict[str, Any] = {"allow_http": True}
    if scene.ca_bundle:
        options["root_certificate"] = Path(scene.ca_bundle).read_bytes()
    if scene.signed:
        bucket, _, key = item.s3_uri.removeprefix("s3://").partition("/")
        # Keys and region come from the AWS variables.
        store = stores.S3Store(
            bucket,
            endpoint=scene.endpoint_url,
            virtual_hosted_style_request=not scene.path_style,
            client_options=options,
        )
        return store, key
    parts = urlsplit(item.url)
    return (
        stores.HTTPStore(f"{parts.scheme}://{parts.netloc}", client_options=options),
        unquote(parts.path).lstrip("/"),
    )
