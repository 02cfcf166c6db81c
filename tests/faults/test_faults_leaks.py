"""What a load that failed holds on to: nothing, once its error is dropped."""

import gc
import random
import weakref
from typing import Any

import pytest

from headrace import SafetensorsStreamer, load_file
from headrace.store.errors import AccessDenied
from headrace.stream.library.tensor_memory import TensorMemory
from tests.faults import server as faults
from tests.faults.server import FaultServer, fault_server
from tests.faults.sockets import sockets_to
from tests.stream.safetensors_files import content
from tests.stream.streaming import FOLDER, credentials_of, put

pytestmark = pytest.mark.timeout(60)
TENSORS = {"a": content("U8", (300, 1000)), "b": content("U8", (300, 1000))}


def load(server: FaultServer, _uri: str) -> None:
    load_file(FOLDER, s3_credentials=credentials_of(server), framework="numpy", chunk_bytes=10_000)


def stream(server: FaultServer, uri: str) -> None:
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(uri, credentials_of(server), framework="numpy", chunk_bytes=10_000)
        list(streamer.get_tensors())


WAYS = {"load_file": load, "streamer": stream}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_a_failed_load_keeps_neither_memory_nor_connections(
    way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[weakref.ref[TensorMemory]] = []

    class Watched(TensorMemory):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            memories.append(weakref.ref(self))

    monkeypatch.setattr("headrace.stream.library.tensor_stream.TensorMemory", Watched)
    with fault_server({}) as server:
        uri = put(server, "model.safetensors", TENSORS)
        good = random.Random(seed).randint(1, 10)
        server.play(*[faults.honest] * good)
        server.usual = faults.error(403, "AccessDenied")
        with pytest.raises(AccessDenied):
            WAYS[way](server, uri)
        gc.collect()
        assert [memory() for memory in memories] == [None]
        assert sockets_to(server.port) == 0
