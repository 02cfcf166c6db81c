"""A plan that several transfers divide among themselves."""

import random
from collections.abc import Iterator

import pytest

from headrace.stream.plan import Chunk, Placement, plan_reads
from headrace.stream.transfer.transfer import Transfer
from tests.faults.opening import only_object, store_of
from tests.faults.server import FaultServer, fault_server

KEY = "model/model.safetensors"
CHUNK = 1_000
COUNT = 30
DATA = random.Random(7).randbytes(CHUNK * COUNT)
PLAN = plan_reads(
    [Placement(0, n * CHUNK, (n + 1) * CHUNK, 0, n, "U8", "U8", n) for n in range(COUNT)], CHUNK
)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


class Every:
    """Reads every n-th chunk, each time only after it was asked twice."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.asked: list[int] = []
        self.transfer: Transfer | None = None

    def reads(self, chunk: Chunk) -> bool | None:
        number = chunk.start // CHUNK
        if number % self.step:
            return False
        if number not in self.asked:
            self.asked.append(number)
            return None
        return True


def load(server: FaultServer, share: Every, memory: list[bytearray]) -> Transfer:
    store = store_of(server)
    transfer = Transfer(
        PLAN, [only_object(store)], store, lambda n: memoryview(memory[n]), concurrency=3, share=share
    )
    while transfer.progress().bytes_done < transfer.progress().bytes_total:
        transfer.wake()
    return transfer


def test_only_the_chunks_of_this_share_are_read_and_count(server: FaultServer) -> None:
    memory = [bytearray(CHUNK) for _ in range(COUNT)]
    transfer = load(server, Every(3), memory)
    assert sorted(transfer.finished_groups()) == list(range(0, COUNT, 3))
    transfer.wait()
    for number in range(COUNT):
        expected = DATA[number * CHUNK : (number + 1) * CHUNK] if number % 3 == 0 else bytes(CHUNK)
        assert memory[number] == expected
    assert sorted(server.ranges) == [(n * CHUNK, (n + 1) * CHUNK - 1) for n in range(0, COUNT, 3)]
    progress = transfer.progress()
    assert (progress.groups_done, progress.bytes_total) == (10, 10 * CHUNK)


def test_a_share_of_nothing_is_complete(server: FaultServer) -> None:
    class Nothing:
        def reads(self, chunk: Chunk) -> bool | None:
            return False

    store = store_of(server)
    transfer = Transfer(
        PLAN, [only_object(store)], store, lambda n: memoryview(b""), concurrency=3, share=Nothing()
    )
    assert list(transfer.finished_groups()) == []
    transfer.wait()
    assert server.ranges == []
    assert transfer.progress().bytes_total == 0
