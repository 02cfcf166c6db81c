"""The bare loop really receives the bytes whose rate is the limit."""

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.bench import wire
from headrace.bench.wire import WireError, plain_headers, read_all, receive_all
from tests.faults.server import FaultServer, Stored, close_in_head, error

DATA = random.Random(1).randbytes(100_000)


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CHUNK_BYTES", 30_000)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    server = FaultServer({"a": Stored.of(DATA), "b": Stored.of(DATA[:1000])})
    yield server
    server.stop()


def test_objects_are_received_whole_in_ranges_over_so_many_connections(server: FaultServer) -> None:
    urls = [(f"{server.url}/bucket/a", 100_000), (f"{server.url}/bucket/b", 1000)]
    assert bytes(receive_all(urls, 3, plain_headers, None)) == DATA + DATA[:1000]
    assert sorted(server.ranges) == [
        (0, 999),
        (0, 29_999),
        (30_000, 59_999),
        (60_000, 89_999),
        (90_000, 99_999),
    ]
    assert 1 <= len({asked.connection for asked in server.log}) <= 3


def test_a_part_of_the_objects_can_be_asked_for(server: FaultServer) -> None:
    received = receive_all([(f"{server.url}/bucket/a", 100_000)], 2, plain_headers, None, limit_bytes=40_000)
    assert bytes(received) == DATA[:60_000]  # whole ranges


def test_each_request_carries_the_headers_of_who_signs(server: FaultServer) -> None:
    def sign(url: str, byte_range: str) -> list[tuple[str, str]]:
        return [("Host", urlsplit(url).netloc), ("Range", byte_range), ("Authorization", f"for {byte_range}")]

    receive_all([(f"{server.url}/bucket/a", 100_000)], 1, sign, None)
    assert all(asked.headers["authorization"] == f"for {asked.headers['range']}" for asked in server.log)
    assert len(server.log) == 4


def test_an_answer_that_is_no_range_is_an_error_with_its_status(server: FaultServer) -> None:
    server.play(error(403, "AccessDenied"))
    with pytest.raises(WireError, match="'403"):
        receive_all([(f"{server.url}/bucket/a", 1000)], 1, plain_headers, None)


def test_a_connection_that_ends_early_is_an_error(server: FaultServer) -> None:
    server.play(close_in_head)
    with pytest.raises(WireError, match="closed a connection"):
        receive_all([(f"{server.url}/bucket/a", 1000)], 1, plain_headers, None)


def test_files_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    (tmp_path / "b").write_bytes(DATA[:10])
    files = [(str(tmp_path / "a"), 100_000), (str(tmp_path / "b"), 10)]
    assert bytes(read_all(files, 3)) == DATA + DATA[:10]


def test_a_file_that_shrank_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA[:10])
    with pytest.raises(WireError, match="shorter"):
        read_all([(str(tmp_path / "a"), 11)], 1)
