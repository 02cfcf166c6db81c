"""Requests that carry a body."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.store.errors import TransientError
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import HttpConnection

HOST = [("Host", "test")]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
pytestmark = pytest.mark.timeout(60)


@contextmanager
def server(*serve: Callable[[socket.socket], None]) -> Iterator[HttpConnection]:
    """Each function serves one connection, in order; a connection to it all."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        for one in serve:
            accepted, _ = listener.accept()
            with accepted:
                one(accepted)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    connection = HttpConnection(endpoint_of(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    try:
        yield connection
    finally:
        connection.close()
        thread.join()
        listener.close()


def receive(connection: socket.socket, seen: list[bytes]) -> None:
    """One request with a Content-Length, head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
    ]
    while len(body) < length:
        body += connection.recv(1 << 16)
    seen += [head, body]


def test_a_body_is_sent_with_its_length_and_the_connection_is_kept() -> None:
    seen: list[bytes] = []
    body = memoryview(bytes(range(256)) * 4_000)

    def two(connection: socket.socket) -> None:
        for _ in range(2):
            receive(connection, seen)
            connection.sendall(OK)

    with server(two) as http:
        for sent in (body, b""):
            assert http.request("/x", HOST, method="POST", body=sent).status == 200
            assert http.read_body() == b"ok"
    assert seen[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert (seen[1], seen[3]) == (body, b"")


def test_an_answer_that_comes_before_the_body_is_taken_is_read() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(10)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with server(refuse) as http:
        assert http.request("/x", HOST, method="PUT", body=bytes(8 << 20)).status == 413
        assert http.read_body() == b"big"


def test_a_body_is_sent_again_where_a_kept_connection_was_closed() -> None:
    seen: list[bytes] = []

    def once(connection: socket.socket) -> None:
        receive(connection, seen)
        connection.sendall(OK)

    def close_at_the_second(connection: socket.socket) -> None:
        once(connection)
        receive(connection, seen)

    with server(close_at_the_second, once) as http:
        for body in (b"first", b"second"):
            assert http.request("/x", HOST, method="POST", body=body).status == 200
            http.read_body()
    assert seen[1::2] == [b"first", b"second", b"second"]


def test_a_new_connection_that_ends_without_an_answer_is_an_error() -> None:
    with server(lambda connection: receive(connection, [])) as http, pytest.raises(TransientError):
        http.request("/x", HOST, method="POST", body=b"x")
