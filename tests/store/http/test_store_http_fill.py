"""Bodies that are received in one go: each byte counts when it is there, whatever comes next, plain and over TLS."""

import random
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import pytest

from headrace.demo.identity import Tls
from headrace.store.base import Target
from headrace.store.errors import TimedOut, TransientError
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import ConnectionLost, HttpConnection
from headrace.store.http.trust import Trust
from tests.faults import server as faults
from tests.faults.opening import PATIENT_S, STALL_TIMEOUT_S
from tests.faults.server import Exchange, FaultServer, Stored

KEY = "model.safetensors"
DATA = random.Random(11).randbytes(300_001)
HOST = ("Host", "test")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest, loopback_tls: Tls) -> Iterator[FaultServer]:
    context = None
    if request.param == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    running = FaultServer({KEY: Stored.of(DATA)}, tls=context)
    yield running
    running.stop()


@pytest.fixture
def opened(server: FaultServer, loopback_tls: Tls) -> Iterator[Callable[[float], HttpConnection]]:
    """Makes a connection to the server; it is closed in the end."""
    made: list[HttpConnection] = []

    def open_connection(stall_timeout_s: float = PATIENT_S) -> HttpConnection:
        endpoint = endpoint_of(server.url, Trust(str(loopback_tls.certificate)))
        made.append(HttpConnection(endpoint, stall_timeout_s=stall_timeout_s))
        return made[-1]

    yield open_connection
    for connection in made:
        connection.close()


Opened = Callable[..., HttpConnection]


def ask(connection: HttpConnection, first: int = 0, last: int = len(DATA) - 1) -> None:
    assert connection.request(f"/bucket/{KEY}", [HOST, ("Range", f"bytes={first}-{last}")]).status == 206


def receive(connection: HttpConnection, target: Target) -> None:
    while len(view := target.next_view()):  # more than once for a view whose first bytes came with the head
        assert connection.fill(view, target) > 0


class Watched:
    """A counter that tells when `awaited` bytes are there."""

    def __init__(self, awaited: int) -> None:
        self._received, self._awaited = 0, awaited
        self.there = threading.Event()

    @property
    def received(self) -> int:
        return self._received

    @received.setter
    def received(self, value: int) -> None:
        self._received = value
        if value >= self._awaited:
            self.there.set()


def in_portions(*sizes: int) -> faults.Behaviour:
    """An honest answer whose body comes in portions of these sizes, over TLS each a record, again and again."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        at, turn = 0, 0
        while at < len(exchange.wanted):
            size = sizes[turn % len(sizes)]
            exchange.send(exchange.wanted[at : at + size])
            at, turn = at + size, turn + 1

    return behave


def ended_well(after: int) -> faults.Behaviour:
    """Some bytes of the body, then the end that TLS has for a conversation (close_notify)."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:after])
        if isinstance(exchange.socket, ssl.SSLSocket):
            exchange.socket.unwrap()
        exchange.keep = False

    return behave


@pytest.mark.parametrize("portions", [(16_384,), (1, 16_383), (7, 40_000, 1_000), (65_537, 3)])
@pytest.mark.parametrize("views", [(100, 200_000, 1, 50_000), (16_384, 16_385, 16_383)])
def test_whatever_the_portions_and_the_places_each_byte_lands_in_its_own(
    server: FaultServer, opened: Opened, portions: tuple[int, ...], views: tuple[int, ...]
) -> None:
    server.play(in_portions(*portions))
    memory = memoryview(bytearray(len(DATA)))
    ends = [0, *accumulate(views), len(DATA)]
    target = Target([memory[start:end] for start, end in pairwise(ends)])
    connection = opened()
    ask(connection)
    receive(connection, target)
    assert (target.received, bytes(memory)) == (len(DATA), DATA)


@pytest.mark.parametrize("after", [1, 16_384, 100_001, len(DATA) - 1])
@pytest.mark.parametrize("end", [faults.short_body, ended_well])
def test_what_came_before_the_connection_ended_counts_to_the_byte(
    server: FaultServer, opened: Opened, after: int, end: Callable[[int], faults.Behaviour]
) -> None:
    server.play(end(after))
    memory = bytearray(len(DATA))
    target = Target([memoryview(memory)])
    connection = opened()
    ask(connection)
    with pytest.raises(ConnectionLost):
        receive(connection, target)
    assert target.received == after
    ask(connection, after)  # on a new connection
    receive(connection, target)
    assert memory == DATA


def test_a_silence_in_the_middle_ends_it_and_what_came_before_counts(
    server: FaultServer, opened: Opened
) -> None:
    server.play(faults.stall(100_001))
    target = Target([memoryview(bytearray(len(DATA)))])
    connection = opened(STALL_TIMEOUT_S)
    ask(connection)
    with pytest.raises(TimedOut, match=f"No byte came for {STALL_TIMEOUT_S:g} s"):
        receive(connection, target)
    assert target.received == 100_001


def test_bytes_count_while_more_are_waited_for_and_another_thread_can_end_that(
    server: FaultServer, opened: Opened
) -> None:
    server.play(faults.stall(100_001))
    connection = opened()
    ask(connection)
    counter, memory = Watched(100_001), memoryview(bytearray(len(DATA)))
    failures: list[TransientError] = []

    def read() -> None:
        try:
            while counter.received < len(DATA):
                connection.fill(memory[counter.received :], counter)
        except TransientError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert counter.there.wait(PATIENT_S / 2)
    connection.abort()
    thread.join()
    assert len(failures) == 1
    assert (counter.received, bytes(memory[:100_001])) == (100_001, DATA[:100_001])


def test_a_signal_is_no_silence(server: FaultServer, opened: Opened) -> None:
    handled, reader = threading.Event(), threading.get_ident()
    server.play(faults.held(100_001, handled))
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    counter, memory = Watched(100_001), memoryview(bytearray(len(DATA)))

    def send_signal() -> None:
        counter.there.wait()
        while not handled.wait(0.05):  # one that comes just before a wait begins does not end it
            signal.pthread_kill(reader, signal.SIGUSR1)

    sender = threading.Thread(target=send_signal)
    try:
        connection = opened()
        ask(connection)
        sender.start()
        while counter.received < len(DATA):
            connection.fill(memory[counter.received :], counter)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert memory == DATA


def test_the_next_answer_on_the_same_connection_has_the_whole_time_again(
    server: FaultServer, opened: Opened
) -> None:
    connection = opened()
    for first in (0, 100_000, 200_000):
        ask(connection, first, first + 99_999)
        target = Target([memoryview(bytearray(100_000))])
        receive(connection, target)
        assert bytes(target.views[0]) == DATA[first : first + 100_000]
    server.play(faults.stall_before_head)
    connection.be_patient(STALL_TIMEOUT_S)
    with pytest.raises(TimedOut, match=f"No byte came for {STALL_TIMEOUT_S:g} s"):
        ask(connection)
    assert {asked.connection for asked in server.log} == {0}
