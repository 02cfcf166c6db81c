"""The sockets between the ranks of one machine: messages, signs of life, and the end of a process."""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping

from headrace.stream.ranks.messages import LARGEST_PACKET, Alive, Leaving, Message, decode, encode

_TICK_S = 1.0
_BEATS = 8  # signs of life within the time after which silence is an end


class Link:
    """The socket to one other rank, and its process where it can be watched."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        """Args: rank: the other's, in the group."""
        self.rank = rank
        self.connection = connection
        self.process = _watch(connection)
        self.left = False
        self.heard_s = time.monotonic()

    def close(self) -> None:
        """Give both descriptors back; a second call does nothing."""
        self.connection.close()
        if self.process >= 0:
            os.close(self.process)
            self.process = -1


def _watch(connection: socket.socket) -> int:
    """A descriptor that becomes readable when the other's process ends; -1 where there can be none.

    The socket's end alone would not do: a child that the process forked keeps that open.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process = int.from_bytes(credentials[:4], "little", signed=True)
    if process <= 0:  # one of another process namespace
        return -1
    try:
        return os.pidfd_open(process)
    except OSError:  # a kernel or a sandbox without them
        return -1


class Links:
    """All links of a rank, by the others' places in the machine. `run` belongs to one thread, `send` to all."""

    def __init__(
        self,
        links: Mapping[int, Link],
        received: Callable[[int, Message], None],
        lost: Callable[[int, str], None],
        silence_timeout_s: float,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        received: told each message and the place that it came from, by the thread that runs.
        lost: told the rank that ended before it said that it leaves, and how that showed.
        silence_timeout_s: how long another may give no sign of life.
        tick: called about once a second by the thread that runs.
        """
        self._links, self._received, self._lost = dict(links), received, lost
        self._silence_timeout_s, self._tick = silence_timeout_s, tick
        self._stopped = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def send(self, place: int, message: Message) -> None:
        """Send to one; what cannot arrive because the other has ended is noticed where messages are received."""
        with contextlib.suppress(OSError):
            self._links[place].connection.send(encode(message))

    def tell_all(self, message: Message) -> None:
        """Send to all without waiting for anybody who does not read."""
        data = encode(message)
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.connection.send(data, socket.MSG_DONTWAIT)

    def stop(self) -> None:
        """Make `run` return soon. A second call does nothing."""
        if not self._stopped.is_set():
            self._stopped.set()
            os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Receive until `stop`; then sends that somebody waits in fail."""
        try:
            self._run()
        finally:
            for link in self._links.values():
                with contextlib.suppress(OSError):  # the other was first
                    link.connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        beat_s = self._silence_timeout_s / _BEATS
        next_beat_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for place, link in self._links.items():
                selector.register(link.connection, selectors.EVENT_READ, place)
                if link.process >= 0:
                    selector.register(link.process, selectors.EVENT_READ, place)
            while not self._stopped.is_set():
                if (now := time.monotonic()) >= next_beat_s:
                    self.tell_all(Alive())
                    next_beat_s = now + beat_s
                wait_s = min(next_beat_s - now, _TICK_S)
                ready = {key.data for key, _ in selector.select(wait_s) if key.data is not None}
                for place in ready:
                    if (cause := self._receive(place)) is not None:
                        self._unregister(selector, place)
                        if not self._links[place].left:
                            self._lost(self._links[place].rank, cause)
                self._judge_silence()
                self._tick()

    def close(self) -> None:
        """Close all. Nobody may send or run any more."""
        for link in self._links.values():
            link.close()
        os.close(self._wake)

    def _receive(self, place: int) -> str | None:
        """All messages that are there; what shows the other's end, or None while there is none."""
        link = self._links[place]
        ended = link.process >= 0 and _is_readable(link.process)
        while not self._stopped.is_set():
            try:
                data = link.connection.recv(LARGEST_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return "its process ended" if ended else None
            except ConnectionResetError:
                continue  # told once, and before what had arrived until then
            if not data:
                return "its process ended or closed the connection"
            link.heard_s = time.monotonic()
            message = decode(data)
            link.left = link.left or isinstance(message, Leaving)
            self._received(place, message)
        return None

    def _unregister(self, selector: selectors.BaseSelector, place: int) -> None:
        link = self._links[place]
        selector.unregister(link.connection)
        if link.process >= 0:
            selector.unregister(link.process)
        link.heard_s = float("inf")

    def _judge_silence(self) -> None:
        now = time.monotonic()
        for link in self._links.values():
            silent = not link.left and now - link.heard_s > self._silence_timeout_s
            # It may be this process that was stopped: what has arrived meanwhile is read first.
            if silent and not _is_readable(link.connection.fileno()):
                link.heard_s = float("inf")
                self._lost(link.rank, f"its process gave no sign of life for {self._silence_timeout_s:g} s")


def _is_readable(descriptor: int) -> bool:
    with selectors.PollSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))
