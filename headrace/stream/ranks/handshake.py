"""Sockets between the ranks of one machine: each pair proves who it is and hands over descriptors."""

import hmac
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

# Everybody is there when it begins; whoever dies then is found missing before the load would be given up.
MEETING_TIMEOUT_S = 8.0
_TOKEN_BYTES = 16
_MOST_DESCRIPTORS = 3


class Address(msgspec.Struct, frozen=True):
    """Where a rank listens, and what who connects has to know: the names of sockets are known to all users."""

    name: str
    token: bytes


class _Greeting(msgspec.Struct, frozen=True):
    rank: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Hand:
    """One other rank: the socket to it and the descriptors that it gave. All belong to who gets them."""

    rank: int
    connection: socket.socket
    descriptors: list[int]


def listen(backlog: int) -> tuple[Address, socket.socket]:
    """A socket that only this network namespace can reach. Raises OSError."""
    name = f"headrace-{secrets.token_hex(_TOKEN_BYTES)}"
    listener = _socket()
    try:
        listener.bind("\0" + name)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return Address(name, secrets.token_bytes(_TOKEN_BYTES)), listener


def shake_hands(
    listener: socket.socket, rank: int, addresses: Mapping[int, Address], given: Sequence[int]
) -> Iterator[Hand]:
    """Connect to lower ranks, then wait for higher ones.

    Args:
        addresses: of all ranks of the machine, this one's own too.
        given: descriptors for each of the others, at most three.

    Raises:
        OSError: somebody did not answer, or not in time.
    """
    token = addresses[rank].token
    for other in sorted(addresses):
        if other < rank:
            connection = _socket()
            try:
                connection.connect("\0" + addresses[other].name)
                _greet(connection, _Greeting(rank, addresses[other].token), given)
                greeting, descriptors = _greeted(connection)
                if greeting.rank != other or not hmac.compare_digest(greeting.token, token):
                    close_all(descriptors)
                    raise ConnectionRefusedError(f"somebody else answers at the address of rank {other}")
            except BaseException:
                connection.close()
                raise
            connection.settimeout(None)
            yield Hand(other, connection, descriptors)
    missing = {other for other in addresses if other > rank}
    while missing:
        connection, _ = listener.accept()
        connection.settimeout(MEETING_TIMEOUT_S)
        try:
            greeting, descriptors = _greeted(connection)
        except (OSError, msgspec.MsgspecError):  # a stranger
            connection.close()
            continue
        if greeting.rank not in missing or not hmac.compare_digest(greeting.token, token):
            close_all(descriptors)
            connection.close()
            continue
        missing.remove(greeting.rank)
        try:
            _greet(connection, _Greeting(rank, addresses[greeting.rank].token), given)
        except BaseException:
            close_all(descriptors)
            connection.close()
            raise
        connection.settimeout(None)
        yield Hand(greeting.rank, connection, descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def _socket() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(MEETING_TIMEOUT_S)
    return connection


def _greet(connection: socket.socket, greeting: _Greeting, descriptors: Sequence[int]) -> None:
    socket.send_fds(connection, [msgspec.msgpack.encode(greeting)], list(descriptors))


def _greeted(connection: socket.socket) -> tuple[_Greeting, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 12, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    try:
        return msgspec.msgpack.decode(data, type=_Greeting), descriptors
    except msgspec.MsgspecError:
        close_all(descriptors)
        raise
