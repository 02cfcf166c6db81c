"""One rank of a torch.distributed group over gloo, run as a process by test_stream_distributed_gloo.py.

Its standard input is one JSON object: rank, size, the group's file, and loads. It prints a JSON object for each
load on a line of its own; a load that fails gives the error's kind and text.
"""

import gc
import hashlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, TensorInfo
from headrace.stream.checkpoint.headers import fetch_shard
from headrace.stream.plan import Columns, Placement, placed_bytes, plan_reads
from headrace.stream.ranks.distributed import DistributedTransfer
from headrace.stream.ranks.start import start_distributed
from headrace.stream.retry import RetryPolicy


def placed(kind: str, tensor: TensorInfo, number: int, rank: int, size: int) -> Placement | None:
    """What a rank wants of a tensor: "whole", its "rows", its "columns", those as "float32", or "nothing"."""
    start, end = tensor.start, tensor.end
    columns = None
    dtype = tensor.dtype
    if kind == "nothing":
        return None
    if kind == "rows" and tensor.shape and tensor.shape[0] % size == 0:
        part = (end - start) // size
        start, end = start + rank * part, start + (rank + 1) * part
    if (
        kind in ("columns", "float32")
        and len(tensor.shape) == 2
        and end > start
        and tensor.shape[1] % size == 0
    ):
        row = tensor.shape[1] * DTYPE_BITS[tensor.dtype] // 8
        columns = Columns(row, rank * row // size, (rank + 1) * row // size)
    if kind == "float32":
        dtype = "F32"
    return Placement(0, start, end, 0, number, tensor.dtype, dtype, number, columns)


def load(asked: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Carry out one load: the hash of each tensor's bytes by its name, in the order in which they were complete."""
    store = S3Store(parse_source(asked["uri"]), resolve_s3_settings(asked["environment"]))
    item = store.list().find(asked["name"])
    assert item is not None
    reader = store.open_reader()
    shard: Shard = fetch_shard(reader, item, item.key)
    kind = asked["kinds"][rank]
    tensors = sorted(shard.tensors.values(), key=lambda tensor: tensor.start)
    wanted = [(t, p) for n, t in enumerate(tensors) if (p := placed(kind, t, n, rank, size)) is not None]
    names = {placement.group: tensor.name for tensor, placement in wanted}
    memory = {placement.buffer: bytearray(placed_bytes(placement)) for _, placement in wanted}
    transfer = start_distributed(
        plan_reads([placement for _, placement in wanted], asked["chunk_bytes"]),
        [item],
        store,
        lambda number: memoryview(memory[number]),
        chunk_bytes=asked["chunk_bytes"],
        ring_bytes=asked["ring_bytes"],
        silence_timeout_s=asked.get("silence_timeout_s", 120.0),
        readers=[reader],
        concurrency=asked.get("concurrency"),
        policy=RetryPolicy(attempts=3, first_s=0.0),
        hedge=False,
    )
    assert isinstance(transfer, DistributedTransfer)
    try:
        hashes = {names[n]: hashlib.sha256(memory[n]).hexdigest() for n in transfer.finished_groups()}
    finally:
        transfer.wait()
    return {"hashes": hashes, "bytes_read": transfer.bytes_read}


def left_over() -> list[str]:
    """What a load should have given back: threads, descriptors, shared memory."""
    gc.collect()
    threads = [t.name for t in threading.enumerate() if t.name.startswith(("fetch-", "ranks-"))]
    links = [os.fsdecode(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    maps = Path("/proc/self/maps").read_text()
    return threads + [link for link in links if "headrace" in link] + ["map"] * ("memfd:headrace" in maps)


def main() -> None:
    """Join the group, carry out the loads, print what came."""
    asked = json.loads(sys.stdin.readline())
    import torch.distributed as distributed

    rank, size = asked["rank"], asked["size"]
    distributed.init_process_group("gloo", init_method=f"file://{asked['file']}", rank=rank, world_size=size)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for each in asked["loads"]:
        try:
            result = load(each, rank, size)
        except BaseException as error:
            result = {"error": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None)}
        print(json.dumps({**result, "left": left_over()}), flush=True)


if __name__ == "__main__":
    main()
