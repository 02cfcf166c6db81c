"""One rank of a gloo group that loads through the library, run as a process by test_stream_library_distributed.py.

Standard input is one JSON object: rank, size, the group's file, and the folder's URI. Prints a line of JSON a load:
each tensor's hash, or the error's kind and text.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed

from headrace import HeadraceError, SafetensorsStreamer, TensorParallel, load_file


def hashed(tensors: dict[str, Any]) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in tensors.items()}


def streamed(uri: str, **options: Any) -> dict[str, str]:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([uri], is_distributed=True, framework="numpy", **options)
        return hashed(dict(streamer.get_tensors()))


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    rank, uri = asked["rank"], f"{asked['folder']}/model.safetensors"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{asked['meeting']}", rank=rank, world_size=asked["size"]
    )
    half = TensorParallel(rank, asked["size"], {"rows": 0, "columns": 1})
    loads: list[Callable[[], dict[str, str]]] = [
        lambda: streamed(uri),
        lambda: streamed(uri, tensor_parallel=half),
        lambda: streamed(uri, names=["rows", "missing"] if rank == 1 else None),
        lambda: streamed(uri if rank == 0 else f"{asked['folder']}/gone.safetensors"),
        lambda: hashed(load_file(asked["folder"], is_distributed=True, framework="numpy", memory_limit=0)),
    ]
    for load in loads:
        try:
            answer: dict[str, Any] = load()
        except HeadraceError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
