"""One ranged read against each fault: the object's own bytes or the right typed error, and what was asked for."""

import random
import threading
from collections.abc import Iterator

import pytest

from headrace.source.objects import ObjectInfo
from headrace.store.base import read_range, read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    Changed,
    ExpiredCredentials,
    StoreError,
    Throttled,
    TimedOut,
    TransientError,
    Truncated,
    Unsupported,
    WrongRegion,
)
from headrace.store.http.connection import MAX_HEAD_BYTES
from headrace.store.s3.store import S3Reader
from headrace.stream.retry import RetryPolicy, persistently
from tests.faults import server as faults
from tests.faults.opening import SECRET, STALL_TIMEOUT_S, only_object, store_of, target_of
from tests.faults.server import Behaviour, FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
DATA = random.Random(1).randbytes(300_000)
FIRST, LENGTH = 1_000, 200_000
LAST = FIRST + LENGTH - 1


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


@pytest.fixture
def item(server: FaultServer) -> ObjectInfo:
    return only_object(store_of(server))


@pytest.fixture
def reader(server: FaultServer) -> Iterator[S3Reader]:
    opened = store_of(server, stall_timeout_s=STALL_TIMEOUT_S).open_reader()
    yield opened
    opened.close()


def read_persistently(reader: S3Reader, item: ObjectInfo) -> bytes:
    memory, target = target_of(LENGTH)
    persistently(lambda: reader.read_into(item, FIRST, target), RetryPolicy(attempts=3), lambda seconds: None)
    return bytes(memory)


RESUMED: dict[str, tuple[Behaviour, int]] = {
    "short body": (faults.short_body(70_000), 70_000),
    "closed after the head": (faults.short_body(0), 0),
    "stall in the body": (faults.stall(60_000), 60_000),
    "chunked without its end": (faults.chunked(50_000, stop_after=100_000, end=False), 100_000),
    "chunked and too short": (faults.chunked(50_000, stop_after=100_000), 100_000),
    "ended by the connection, too early": (faults.until_close(90_000), 90_000),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_body_that_ends_early_is_resumed_from_the_missing_byte(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    behaviour, received = RESUMED[name]
    server.play(behaviour)
    assert read_persistently(reader, item) == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST), (FIRST + received, LAST)]


def test_two_short_bodies_in_a_row_are_resumed_twice(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.short_body(10), faults.short_body(20))
    assert read_persistently(reader, item) == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST), (FIRST + 10, LAST), (FIRST + 30, LAST)]


def test_after_a_reset_no_byte_that_arrived_is_asked_for_again(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.reset_body(120_000))
    memory, target = target_of(LENGTH)
    with pytest.raises(TransientError):
        reader.read_into(item, FIRST, target)
    arrived = target.received  # a reset may overtake what was sent before it
    reader.read_into(item, FIRST, target)
    assert memory == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST), (FIRST + arrived, LAST)]


REPEATED: dict[str, Behaviour] = {
    "500": faults.error(500, "InternalError"),
    "502 without a body": faults.error(502),
    "503": faults.error(503, "SlowDown"),
    "429": faults.error(429),
    "408": faults.error(408),
    "400 RequestTimeout": faults.error(400, "RequestTimeout"),
    "closed in the head": faults.close_in_head,
    "no HTTP": faults.garbage,
    "compressed on the way": faults.gzipped_on_the_way,
    "a head without end": faults.oversized_head,
    "no answer": faults.stall_before_head,
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_failed_request_is_repeated(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(REPEATED[name])
    assert read_persistently(reader, item) == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST)] * 2


@pytest.mark.parametrize("name", REPEATED)
def test_a_request_that_fails_each_time_is_a_transient_error(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(*[REPEATED[name]] * 4)
    with pytest.raises(TransientError):
        read_persistently(reader, item)


@pytest.mark.parametrize("name", [*RESUMED, *REPEATED])
def test_a_silence_is_told_from_other_failures(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(RESUMED[name][0] if name in RESUMED else REPEATED[name])
    with pytest.raises(TransientError) as caught:
        reader.read_into(item, FIRST, target_of(LENGTH)[1])
    assert isinstance(caught.value, TimedOut) == (name in ("stall in the body", "no answer"))


FINE: dict[str, Behaviour] = {
    "trickled head and body": faults.trickle(1_999),
    "a byte at a time through the head": faults.trickle(1),
    "chunked": faults.chunked(4_096),
    "chunked in one": faults.chunked(1 << 20),
    "ended by the connection": faults.until_close(),
    "1xx before": faults.interim,
    "identity": faults.encoded("identity"),
    "aws-chunked": faults.encoded("aws-chunked"),
    "without an ETag": faults.tagged(""),
}


@pytest.mark.parametrize("name", FINE)
def test_an_unusual_but_right_answer_is_taken_and_the_connection_goes_on(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(FINE[name])
    first, length = (FIRST, LENGTH) if "byte at a time" not in name else (7, 300)
    assert read_range(reader, item, first, length) == DATA[first : first + length]
    assert read_range(reader, item, 5, 50) == DATA[5:55]
    assert server.ranges == [(first, first + length - 1), (5, 54)]


REFUSED: dict[str, tuple[Behaviour, type[StoreError], str]] = {
    "403": (faults.error(403, "AccessDenied"), AccessDenied, "may not do this"),
    "wrong secret": (faults.error(403, "SignatureDoesNotMatch"), BadSignature, "AWS_SECRET_ACCESS_KEY"),
    "clock": (faults.error(403, "RequestTimeTooSkewed"), BadSignature, "clock"),
    "expired": (faults.error(400, "ExpiredToken"), ExpiredCredentials, "AWS_SESSION_TOKEN"),
    "removed": (faults.error(404, "NoSuchKey"), Changed, "removed after it was listed"),
    "404 of something else": (faults.error(404), BadEndpoint, "does not answer as an S3 store"),
    "replaced": (faults.error(412, "PreconditionFailed"), Changed, "replaced after it was listed"),
    "shorter": (faults.error(416, "InvalidRange"), Truncated, "shorter than it was listed"),
    "elsewhere": (faults.error(301, "PermanentRedirect"), WrongRegion, "AWS_REGION"),
    "501": (faults.error(501, "NotImplemented"), Unsupported, "refuses the request"),
    "no Content-Range": (faults.content_range(None), Unsupported, "no valid Content-Range"),
    "Content-Range of nothing": (faults.content_range("bytes */300000"), Unsupported, "no valid Content-Range"),
    "unknown total": (faults.content_range(f"bytes {FIRST}-{LAST}/*"), Unsupported, "no valid Content-Range"),
    "another total": (faults.content_range(f"bytes {FIRST}-{LAST}/299999"), Changed, "299,999 bytes"),
    "shifted bytes": (faults.shifted(1), Unsupported, f"{FIRST + 1}-{LAST + 1} were sent"),
    "the whole object": (faults.whole, Unsupported, "the whole object was sent"),
    "gzip": (faults.gzipped, Unsupported, "without Content-Encoding"),
    "another ETag": (faults.tagged('"0123456789abcdef"'), Changed, "now 0123456789abcdef"),
    "longer body": (faults.longer_body(1), Unsupported, "the body has 200001 bytes"),
    "the body twice": (faults.duplicated, Unsupported, "the body has 400000 bytes"),
    "the body twice, chunked": (faults.duplicated_chunked, Unsupported, "longer than the 200,000 bytes"),
    "longer chunked body": (faults.chunked(9_999, extra=b"?"), Unsupported, "longer than the 200,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_answer_is_a_typed_error_that_names_the_object(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    behaviour, kind, said = REFUSED[name]
    server.play(behaviour)
    with pytest.raises(kind) as caught:
        read_persistently(reader, item)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert f"s3://bucket/{KEY}" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(server.ranges) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_after_a_wrong_answer_the_next_read_is_right_at_once(
    name: str, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(REFUSED[name][0])
    with pytest.raises(StoreError):
        read_range(reader, item, FIRST, LENGTH)
    assert read_range(reader, item, 3, 100) == DATA[3:103]
    assert server.ranges[1:] == [(3, 102)]


def test_an_error_tells_status_code_and_request_id(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.error(403, "AccessDenied"))
    with pytest.raises(AccessDenied) as caught:
        read_whole(reader, item)
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (403, "AccessDenied", "REQ1")
    assert "(HTTP 403, AccessDenied, request id REQ1)" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("nan", None), ("inf", None), ("Fri, 02 Jan 2026 03:04:05 GMT", None)],
)
def test_a_store_that_asks_to_wait_says_how_long(
    header: str, seconds: float | None, server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.error(503, "SlowDown", Retry_After=header))
    with pytest.raises(Throttled) as caught:
        read_whole(reader, item)
    assert caught.value.retry_after_s == seconds


def test_a_kept_connection_that_was_closed_meanwhile_is_not_a_failure(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.close_after, faults.close_after)
    for start in (0, 10, 20):
        assert read_range(reader, item, start, 10) == DATA[start : start + 10]
    assert server.ranges == [(0, 9), (10, 19), (20, 29)]


def test_a_connection_that_ends_before_each_answer_is_a_failure(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.close_before_head)
    with pytest.raises(TransientError, match="connection closed before the response's head"):
        read_whole(reader, item)
    assert len(server.ranges) == 1


def test_a_connection_that_the_server_says_it_closes_is_not_used_again(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.connection_close)
    read_range(reader, item, 0, 10)
    read_range(reader, item, 10, 10)
    assert [asked.connection for asked in server.log if asked.range] == [1, 2]  # 0 was the listing's


def test_honest_reads_share_one_connection(server: FaultServer, reader: S3Reader, item: ObjectInfo) -> None:
    for start in range(0, 100, 10):
        read_range(reader, item, start, 10)
    assert {asked.connection for asked in server.log if asked.range} == {1}


FORGED = faults.head_bytes(206, {"Content-Length": "10", "Content-Range": "bytes 10-19/300000"}) + b"!" * 10


def test_bytes_that_come_after_a_body_are_never_taken_for_the_next_answer(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    sent = threading.Event()
    server.play(faults.surplus(FORGED, sent))
    assert read_range(reader, item, 0, 10) == DATA[:10]
    sent.wait()
    assert read_range(reader, item, 10, 10) == DATA[10:20]


def test_bytes_that_come_with_a_body_are_never_taken_for_the_next_answer(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.surplus_at_once(FORGED))
    assert read_range(reader, item, 0, 10) == DATA[:10]
    assert read_range(reader, item, 10, 10) == DATA[10:20]


def test_a_head_of_many_kilobytes_is_read(server: FaultServer, reader: S3Reader, item: ObjectInfo) -> None:
    def behave(exchange: faults.Exchange) -> None:
        exchange.head(X_Filler="x" * (MAX_HEAD_BYTES - 2_000))
        exchange.send(exchange.wanted)

    server.play(behave)
    assert read_range(reader, item, 3, 1_000) == DATA[3:1_003]


def test_a_small_object_may_come_whole_with_200(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.whole)
    assert read_whole(reader, item) == DATA


def test_a_whole_object_of_another_size_is_a_change(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.objects[KEY] = Stored(DATA + b"more", server.objects[KEY].etag)
    server.play(faults.whole)
    with pytest.raises(Changed, match="300,004 bytes, but was listed with 300,000"):
        read_whole(reader, item)


def test_reads_are_pinned_to_the_listed_etag_and_ask_for_plain_bytes(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    read_whole(reader, item)
    asked = server.log[-1]
    assert asked.headers["if-match"] == server.objects[KEY].etag
    assert asked.headers["accept-encoding"] == "identity"


def test_an_object_that_is_replaced_between_two_reads_is_never_mixed(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    server.play(faults.short_body(100), faults.replace_first(KEY, Stored.of(DATA[::-1])))
    memory, target = target_of(LENGTH)
    with pytest.raises(TransientError):
        reader.read_into(item, FIRST, target)
    with pytest.raises(Changed):
        reader.read_into(item, FIRST, target)
    assert target.received == 100
    assert bytes(memory[100:]) == bytes(LENGTH - 100)


def test_nothing_is_asked_for_an_empty_object(server: FaultServer) -> None:
    server.objects[KEY] = Stored.of(b"")
    store = store_of(server)
    assert read_whole(store.open_reader(), only_object(store)) == b""
    assert server.ranges == []


def test_a_range_that_goes_to_many_places_fills_them_in_order(
    server: FaultServer, reader: S3Reader, item: ObjectInfo
) -> None:
    from headrace.store.base import Target

    memory = memoryview(bytearray(1_000))
    views = [memory[600:1_000], memory[0:0], memory[0:1], memory[1:600]]
    server.play(faults.short_body(500))
    target = Target(views)
    persistently(lambda: reader.read_into(item, 50, target), RetryPolicy(), lambda seconds: None)
    assert memory[600:] == DATA[50:450]
    assert memory[:600] == DATA[450:1_050]
