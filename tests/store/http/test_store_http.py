"""Connections: TLS, IPv6, what ends in bounded time, and what another thread can end."""

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from headrace.source.uri import parse_source
from headrace.store.base import read_range, read_whole
from headrace.store.errors import BadEndpoint, NoCredentials, TlsError, TransientError, Unreachable
from headrace.store.http.connect import Endpoint, endpoint_of
from headrace.store.http.connection import HttpConnection
from headrace.store.http.trust import Trust
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.transfer import Cancelled, Transfer
from tests.faults import server as faults
from tests.faults.opening import (
    STALL_TIMEOUT_S,
    environment_of,
    one_byte,
    only_object,
    store_of,
)
from tests.faults.server import FaultServer, Stored

KEY = "model/model.safetensors"
DATA = random.Random(5).randbytes(400_000)
FOR_EVER_S = 3600.0
HOST = [("Host", "test")]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def secure_server(loopback_tls: Tls) -> Iterator[FaultServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    server = FaultServer({KEY: Stored.of(DATA)}, tls=context)
    yield server
    server.stop()


def secure_store(server: FaultServer, tls: Tls, stall_timeout_s: float = STALL_TIMEOUT_S) -> S3Store:
    environment = {**environment_of(server), "AWS_CA_BUNDLE": str(tls.certificate)}
    return S3Store(
        parse_source("s3://bucket/model"), resolve_s3_settings(environment), stall_timeout_s=stall_timeout_s
    )


def load(store: S3Store) -> bytes:
    memory = bytearray(len(DATA))
    plan = plan_reads([Placement(0, 0, len(DATA), 0, 0, "U8", "U8")], 50_000)
    Transfer(
        plan,
        [only_object(store)],
        store,
        memoryview(memory),
        concurrency=3,
        policy=RetryPolicy(attempts=3, first_s=0.0),
    ).wait()
    return bytes(memory)


def test_bytes_come_whole_over_tls_through_faults(secure_server: FaultServer, loopback_tls: Tls) -> None:
    secure_server.play(
        faults.short_body(100), faults.trickle(7_000), faults.chunked(999), faults.reset_body(30_000)
    )
    assert load(secure_store(secure_server, loopback_tls)) == DATA


def test_a_stall_over_tls_times_out_and_is_resumed(secure_server: FaultServer, loopback_tls: Tls) -> None:
    secure_server.play(faults.stall(40_000), faults.stall_before_head)
    assert load(secure_store(secure_server, loopback_tls)) == DATA


def test_honest_reads_over_tls_share_one_connection_without_a_wait(
    secure_server: FaultServer, loopback_tls: Tls
) -> None:
    store = secure_store(secure_server, loopback_tls, FOR_EVER_S)  # a wait for silence would not end
    item = only_object(store)
    reader = store.open_reader()
    for start in range(0, 100, 10):
        assert read_range(reader, item, start, 10) == DATA[start : start + 10]
    assert {asked.connection for asked in secure_server.log if asked.range} == {1}


def test_a_read_over_tls_that_is_aborted_takes_no_ciphertext(
    secure_server: FaultServer, loopback_tls: Tls
) -> None:
    sent = threading.Event()

    def send(exchange: faults.Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted)
        sent.set()

    secure_server.play(send)
    connection = HttpConnection(endpoint_of(secure_server.url, Trust(str(loopback_tls.certificate))))
    connection.request(f"/bucket/{KEY}", [*HOST, ("Range", "bytes=0-49999")])
    sent.wait()  # what follows lies encrypted in this machine's buffers
    connection.abort()
    memory, received = memoryview(bytearray(50_000)), 0
    with contextlib.suppress(TransientError):  # whether the abort is noticed before the body's end is open
        while count := connection.read_into(memory[received:]):
            received += count
    assert memory[:received] == DATA[:received]


def test_cancel_ends_stalled_reads_over_tls(secure_server: FaultServer, loopback_tls: Tls) -> None:
    secure_server.play(*[faults.stall(100)] * 2)
    store = secure_store(secure_server, loopback_tls, FOR_EVER_S)
    plan = plan_reads([Placement(0, 0, len(DATA), 0, 0, "U8", "U8")], 50_000)
    transfer = Transfer(plan, [only_object(store)], store, memoryview(bytearray(len(DATA))), concurrency=2)
    for _ in range(2):
        secure_server.stalled.get()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()


def test_abort_ends_a_handshake_that_stalls() -> None:
    raised: list[Unreachable | TransientError] = []

    def read(connection: HttpConnection) -> None:
        try:
            connection.request("/", HOST)
        except (Unreachable, TransientError) as error:
            raised.append(error)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = HttpConnection(Endpoint("https", "127.0.0.1", silent.getsockname()[1]))
        thread = threading.Thread(target=read, args=(connection,))
        thread.start()
        accepted, _ = silent.accept()
        accepted.recv(1)  # the hello has begun
        connection.abort()
        thread.join()
        accepted.close()
    (error,) = raised
    assert "timed out" not in str(error)


def test_an_untrusted_certificate_names_the_variable_that_helps(
    secure_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(TlsError, match="is not trusted by the system's CA certificates") as caught:
        store_of(secure_server).list()
    assert "AWS_CA_BUNDLE" in caught.value.remedy


def test_an_endpoint_that_hangs_up_on_a_tls_hello_may_be_plain_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        endpoint = Endpoint("https", "127.0.0.1", listener.getsockname()[1])
        with pytest.raises(Unreachable, match="write http:// in the URL"):
            HttpConnection(endpoint).request("/", HOST)
        thread.join()


def test_a_bundle_that_holds_no_certificates_is_named(secure_server: FaultServer, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("no certificate\n")
    settings = resolve_s3_settings({**environment_of(secure_server), "AWS_CA_BUNDLE": str(bundle)})
    with pytest.raises(BadEndpoint, match=r"bundle\.pem: The CA bundle cannot be used"):
        S3Store(parse_source("s3://bucket/model"), settings).list()


def test_an_ipv6_endpoint_is_reached_and_named_in_brackets() -> None:
    server = FaultServer({KEY: Stored.of(DATA)}, host="::1")
    try:
        store = store_of(server)
        item = only_object(store)
        assert read_whole(store.open_reader(), item) == DATA
        assert {asked.headers["host"] for asked in server.log} == {f"[::1]:{server.port}"}
        assert endpoint_of(server.url).url == server.url
    finally:
        server.stop()
    with pytest.raises(Unreachable, match=rf"http://\[::1\]:{server.port}: No connection"):
        store.list()


def test_a_closed_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match="connection refused") as caught:
        HttpConnection(Endpoint("http", "127.0.0.1", port)).request("/", HOST)
    assert caught.value.uri == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_listener_that_never_answers_ends_in_an_error(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.http.connect.TLS_TIMEOUT_S", STALL_TIMEOUT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(scheme, "127.0.0.1", silent.getsockname()[1])
        with pytest.raises((TransientError, Unreachable)) as caught:
            HttpConnection(endpoint, stall_timeout_s=STALL_TIMEOUT_S).request("/", HOST)
    assert "No byte came for 0.75 s" in str(caught.value) or "timed out" in str(caught.value)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"+", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_a_port_that_speaks_something_else_is_told_at_once(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        connection = HttpConnection(Endpoint("http", "127.0.0.1", other.getsockname()[1]), stall_timeout_s=30)
        accepted: list[socket.socket] = []

        def greet() -> None:
            accepted.append(other.accept()[0])
            accepted[0].sendall(greeting)  # and stays open

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(TransientError, match="The answer is not valid HTTP: it begins with ") as caught:
            connection.request("/", HOST)
        thread.join()
        accepted[0].close()
    assert "the port in the URL" in caught.value.remedy


def test_a_head_that_comes_byte_by_byte_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def answer() -> None:
            peer, _ = slow.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for byte in b"HTTP/1.1 204 No Content\r\n\r\n":
                    peer.sendall(bytes([byte]))

        thread = threading.Thread(target=answer)
        thread.start()
        connection = HttpConnection(Endpoint("http", "127.0.0.1", slow.getsockname()[1]))
        assert connection.request("/", HOST).status == 204
        connection.close()
        thread.join()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".invalid", "x..y"])
def test_a_host_that_cannot_be_found_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable, match="cannot be found"):
        HttpConnection(Endpoint("http", host, 80)).request("/", HOST)


def test_an_aborted_connection_makes_no_new_one() -> None:
    server = FaultServer({KEY: Stored.of(DATA)})
    try:
        store = store_of(server)
        item = only_object(store)
        reader = store.open_reader()
        reader.abort()
        with pytest.raises(TransientError, match="cancelled"):
            reader.read_into(item, 0, one_byte())
        assert server.ranges == []
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
@pytest.mark.parametrize("stray", ["\n", "\r\nX-Injected: 1", "é", "\x7f"])
def test_a_secret_with_a_stray_character_is_refused_and_not_shown(name: str, stray: str) -> None:
    server = FaultServer({KEY: Stored.of(DATA)})
    try:
        environment = {**environment_of(server), name: f"before{stray}after"}
        store = S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(environment))
        with pytest.raises(NoCredentials, match="no request can carry") as caught:
            store.list()
        assert "before" not in str(caught.value)
        assert server.log == []
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("url", "port"), [("http://h", 80), ("https://h", 443), ("http://h:9000", 9000), ("https://[::1]:1", 1)]
)
def test_an_endpoint_knows_its_port(url: str, port: int) -> None:
    assert endpoint_of(url).port == port
