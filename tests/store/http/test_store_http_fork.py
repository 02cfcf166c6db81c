"""A process that is forked inherits connections, as DataLoader's workers do: it neither uses nor ends its parent's."""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from headrace.store.base import read_range
from tests.faults.opening import only_object, store_of
from tests.faults.server import Exchange, FaultServer, fault_server, honest

KEY = "model/model.safetensors"
DATA = random.Random(6).randbytes(4_000_000)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def in_child(work: Callable[[], bool]) -> bool:
    """What `work` says in a forked process."""
    child = os.fork()
    if child == 0:
        said = False
        try:
            said = work()
        finally:
            os._exit(0 if said else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_opens_a_connection_of_its_own(server: FaultServer) -> None:
    peers: list[object] = []

    def answer(exchange: Exchange) -> None:
        peers.append(exchange.socket.getpeername())
        honest(exchange)

    server.usual = answer
    store = store_of(server)
    item = only_object(store)
    reader = store.open_reader()
    read_range(reader, item, 0, 100)
    assert in_child(lambda: read_range(reader, item, 100, 200) == DATA[100:300])
    read_range(reader, item, 300, 100)
    parent, child, parent_again = peers
    assert child != parent
    assert parent_again == parent  # the child has closed its own end only
    reader.close()


def test_a_forked_process_that_ends_a_read_leaves_its_parents_alone(server: FaultServer) -> None:
    ended: list[bool] = []

    def answer(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:1000])
        ended.append(in_child(lambda: reader.abort() is None))  # type: ignore[func-returns-value]
        exchange.send(exchange.wanted[1000:])

    store = store_of(server)
    item = only_object(store)
    server.usual = answer
    reader = store.open_reader()
    assert read_range(reader, item, 0, len(DATA)) == DATA
    assert ended == [True]
    reader.close()
