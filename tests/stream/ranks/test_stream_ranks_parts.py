"""What ranks of one machine share things with: the queue, the ring, the sockets, and the handshake."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.stream.ranks.declaration import Declaration, difference
from headrace.stream.ranks.handshake import Address, close_all, listen, shake_hands
from headrace.stream.ranks.links import Link, Links
from headrace.stream.ranks.messages import LONGEST_TEXT, Copied, Ended, Leaving, Message, Ready, encode
from headrace.stream.ranks.ring import Ring, Slots
from headrace.stream.ranks.tickets import Tickets

WAIT_S = 30.0
pytestmark = pytest.mark.timeout(60)


# ---- tickets


def test_each_ticket_is_drawn_once_and_in_order() -> None:
    tickets = Tickets.create()
    tickets.fill(5)
    others = Tickets(os.dup(tickets.descriptor))
    drawn = [each.take() for each in (tickets, others, others, tickets, others, tickets, others)]
    assert drawn == [0, 1, 2, 3, 4, None, None]
    tickets.close()
    others.close()


def test_processes_draw_from_one_queue() -> None:
    """Every process draws as fast as it can; together they have every number once."""
    count = 60_000
    tickets = Tickets.create()
    tickets.fill(count)
    script = (
        "import sys; from headrace.stream.ranks.tickets import Tickets; t = Tickets(int(sys.argv[1]))\n"
        "while (n := t.take()) is not None: print(n)"
    )
    command = [sys.executable, "-c", script, str(tickets.descriptor)]
    processes = [
        subprocess.Popen(command, pass_fds=[tickets.descriptor], stdout=subprocess.PIPE) for _ in range(3)
    ]
    drawn = [list(map(int, process.communicate()[0].split())) for process in processes]
    tickets.close()
    assert sorted(number for each in drawn for number in each) == list(range(count))
    assert all(each == sorted(each) for each in drawn)


# ---- ring


def test_a_slot_is_free_again_when_all_who_want_it_have_copied() -> None:
    ring = Ring(2, 100)
    first, second = ring.take(), ring.take()
    assert first is not None and second is not None
    assert ring.take() is None
    ring.publish(first, [0, 2])
    assert not ring.copied(first, 2)
    assert ring.take() is None
    assert ring.copied(first, 0)
    assert ring.take() == first
    ring.give_back(second)
    assert ring.take() == second
    ring.close()


def test_others_see_what_was_put_into_a_slot_and_cannot_change_it() -> None:
    ring = Ring(3, 100)
    others = Slots(os.dup(ring.descriptor), 100)
    ring.view(1, 5)[:] = b"bytes"
    view = others.view(1, 5)
    assert view == b"bytes"
    assert view.readonly
    view.release()
    ring.close()
    others.close()


# ---- links


class Received:
    """What a rank hears from another one."""

    def __init__(self, connection: socket.socket, silence_timeout_s: float = WAIT_S) -> None:
        self.messages: list[Message] = []
        self.lost: list[tuple[int, str]] = []
        self.links = Links({1: Link(7, connection)}, self.message, self.loss, silence_timeout_s)
        self._some = threading.Condition()
        self._thread = threading.Thread(target=self.links.run)
        self._thread.start()

    def message(self, place: int, message: Message) -> None:
        assert place == 1
        with self._some:
            self.messages.append(message)
            self._some.notify_all()

    def loss(self, rank: int, cause: str) -> None:
        with self._some:
            self.lost.append((rank, cause))
            self._some.notify_all()

    def wait(self, *, messages: int = 0, lost: int = 0) -> None:
        with self._some:
            assert self._some.wait_for(
                lambda: len(self.messages) >= messages and len(self.lost) >= lost, WAIT_S
            )

    def end(self) -> None:
        self.links.stop()
        self._thread.join()
        self.links.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield mine, others
    others.close()


def test_messages_arrive_as_they_were_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    received = Received(pair[0])
    sent: list[Message] = [Ready(3, 1), Copied(0), Ended(2, "failed", "ä" * LONGEST_TEXT)]
    for message in sent:
        pair[1].send(encode(message))
    received.wait(messages=3)
    received.end()
    assert received.messages == sent


def test_a_closed_connection_is_a_loss(pair: tuple[socket.socket, socket.socket]) -> None:
    received = Received(pair[0])
    pair[1].send(encode(Ready(0, 0)))
    pair[1].close()
    received.wait(messages=1, lost=1)
    received.end()
    assert received.messages == [Ready(0, 0)]
    assert received.lost == [(7, "its process ended or closed the connection")]


def test_who_says_that_it_leaves_is_not_lost(pair: tuple[socket.socket, socket.socket]) -> None:
    received = Received(pair[0], silence_timeout_s=0.2)
    pair[1].send(encode(Leaving()))
    pair[1].close()
    received.wait(messages=1)
    received.end()
    assert received.lost == []


def test_what_was_said_before_the_end_is_heard_also_if_the_other_had_not_read_everything(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A socket that is closed with unread messages resets the other, ahead of what is still on its way there."""
    pair[0].send(encode(Copied(5)))
    pair[1].send(encode(Ready(1, 1)))
    pair[1].send(encode(Leaving()))
    pair[1].close()
    received = Received(pair[0])
    received.wait(messages=2)
    received.end()
    assert received.messages == [Ready(1, 1), Leaving()]
    assert received.lost == []


def test_silence_is_a_loss_and_signs_of_life_are_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    received = Received(pair[0], silence_timeout_s=0.2)
    received.wait(lost=1)
    received.end()
    assert received.lost == [(7, "its process gave no sign of life for 0.2 s")]
    assert pair[1].recv(1 << 16)  # while nothing else was to be said


def test_sending_to_who_does_not_read_ends_with_the_links(pair: tuple[socket.socket, socket.socket]) -> None:
    received = Received(pair[0])
    full = threading.Event()

    def send() -> None:
        for number in range(1 << 20):
            if received.links._stopped.is_set():
                return
            received.links.send(1, Ready(number, 0))
            if number == 100:
                full.set()

    sender = threading.Thread(target=send)
    sender.start()
    full.wait()
    received.end()
    sender.join(WAIT_S)
    assert not sender.is_alive()


FORKING = """
import os, socket, sys, time
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect("\\0" + sys.argv[1])
child = os.fork()
if child == 0:
    os.read(0, 1)  # keeps the socket open until the test ends
else:
    print(child, flush=True)
    time.sleep(600)
"""


def test_a_killed_process_is_lost_also_if_a_child_of_it_keeps_the_socket_open() -> None:
    address, listener = listen(1)
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, address.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    connection, _ = listener.accept()
    connection.settimeout(None)
    received = Received(connection)
    assert process.stdout is not None and process.stdin is not None
    process.stdout.readline()  # it has forked
    process.kill()
    received.wait(lost=1)
    received.end()
    process.stdin.close()  # lets the child end
    process.stdout.read()
    process.stdout.close()
    process.wait()
    listener.close()
    assert received.lost == [(7, "its process ended")]


# ---- handshake


def test_each_gets_the_others_descriptors_and_a_stranger_gets_nothing() -> None:
    addresses: dict[int, Address] = {}
    listeners: dict[int, socket.socket] = {}
    for rank in (2, 5):
        addresses[rank], listeners[rank] = listen(4)
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect("\0" + addresses[2].name)
    stranger.send(b"no greeting")
    impostor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    impostor.connect("\0" + addresses[2].name)
    impostor.send(b"\x82\xa4rank\x05\xa5token\xc4\x10" + bytes(16))  # rank 5 with a token of zeros
    shaken: dict[int, list[tuple[int, bytes]]] = {}

    def shake(rank: int) -> None:
        given = os.memfd_create(f"rank-{rank}")
        os.write(given, f"from {rank}".encode())
        hands = list(shake_hands(listeners[rank], rank, addresses, [given]))
        shaken[rank] = [(hand.rank, os.pread(hand.descriptors[0], 100, 0)) for hand in hands]
        os.close(given)
        for hand in hands:
            close_all(hand.descriptors)
            hand.connection.close()

    threads = [threading.Thread(target=shake, args=(rank,)) for rank in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shaken == {2: [(5, b"from 5")], 5: [(2, b"from 2")]}
    assert stranger.recv(100) == b""
    assert impostor.recv(100) == b""
    for each in (stranger, impostor, *listeners.values()):
        each.close()


def test_ranks_that_read_from_a_store_and_from_files_are_told_so() -> None:
    remote = Declaration("https://store/bucket/model", [], b"", 16)
    local = Declaration("", [], b"", 16)
    assert difference(remote, local) == (
        "they read from different places, https://store/bucket/model and this machine's files"
    )
    assert difference(local, local) == ""
