"""All checks of one model in their order: nothing of the weights is read but headers and a timed sample."""

import os
from collections.abc import Iterator

from headrace.engine.check.files import check_files
from headrace.engine.check.finding import Finding, ok, warn
from headrace.engine.check.model import check_model
from headrace.engine.check.place import check_place
from headrace.engine.check.proof import check_verification
from headrace.engine.check.speed import check_speed
from headrace.ipc.options import EngineOptions
from headrace.source.cache import metadata_root


def preflight(options: EngineOptions) -> Iterator[Finding]:
    """Look whether a model can be served with these options; each finding as soon as it is known.

    What depends on something that failed is left out.
    """
    place = yield from check_place(options.model)
    if place is None:
        return
    try:
        files = yield from check_files(place)
        if files is None:
            return
        load = yield from check_model(options, place.where, files)
        yield from check_verification(place, files.metadata, files.shards)
        if load is not None:
            yield from check_speed(place, [shard.item for shard in files.shards], load.bytes_to_read)
        if place.store.source.scheme != "file":
            yield _check_cache()
    finally:
        place.pool.abort()


def _check_cache() -> Finding:
    root = metadata_root()
    nearest = next(path for path in (root, *root.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ok("cache", f"Small files are kept in {root}.", folder=str(root))
    return warn(
        "cache",
        f"{root} cannot be written, so small files are fetched at every start.",
        "Name a folder that can be written in HEADRACE_CACHE.",
        folder=str(root),
    )
