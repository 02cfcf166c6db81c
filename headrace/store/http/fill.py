"""The innermost loop: a body's bytes from a socket into memory, with as little as can be between two receives.

Under TLS a receive brings one record, 16 KiB at the most: 61,000 of them a GB, each of which takes Python's lock and
gives it back. Whatever else is done for each of them is paid in CPU seconds and in threads that wait for each other.
"""

import os
import socket
import ssl
import struct
from typing import Any, Protocol


class Counter(Protocol):
    """Tells others, at any time, how far a read is.

    Attributes:
        received: bytes that are in place.
    """

    received: int


def set_timeout(connection: socket.socket, seconds: float) -> None:
    """Let every wait for the other end last so long at the most."""
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(seconds)
        _limit_kernel(connection, seconds / 2)  # counts only after `let_kernel_wait`
        return
    # By the kernel: Python's own would poll() before each receive.
    connection.settimeout(None)
    _limit_kernel(connection, seconds)


def let_kernel_wait(connection: ssl.SSLSocket) -> None:
    """Have reads block in the kernel, until the next `set_timeout`: Python would look, poll and look again.

    A wait of half the time-out ends as SSLWantReadError; so does one that a signal ends.
    """
    connection.settimeout(0.0)  # a wait's end comes up here; with None, OpenSSL would just read again
    os.set_blocking(connection.fileno(), True)


def _limit_kernel(connection: socket.socket, seconds: float) -> None:
    whole, part = divmod(seconds, 1)
    limit = struct.pack("ll", int(whole), int(part * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def fill(connection: socket.socket, view: memoryview, counter: Counter) -> int:
    """Receive until `view` is full or the other end has closed; how many bytes. Each portion counts at once.

    Raises OSError as recv does.
    """
    at, size, before, receive = 0, len(view), counter.received, connection.recv_into
    while at < size:
        count = receive(view[at:])
        if count == 0:
            break
        at += count
        counter.received = before + at
    return at


def fill_decrypted(connection: ssl.SSLSocket, view: memoryview, counter: Counter, timeout_s: float) -> int:
    """As `fill`, after `let_kernel_wait`.

    Args: timeout_s: as it was set.

    Raises OSError; TimeoutError where nothing came for so long.
    """
    at, size, before = 0, len(view), counter.received
    read: Any = connection.read  # typeshed allows no memoryview; recv_into is this with a call more
    while at < size:
        try:
            count = read(size - at, view[at:])
        except ssl.SSLWantReadError:
            connection.settimeout(timeout_s / 2)  # Python waits for the other half, through signals
            count = read(size - at, view[at:])
            let_kernel_wait(connection)
        if count == 0:
            break
        at += count
        counter.received = before + at
    return at
