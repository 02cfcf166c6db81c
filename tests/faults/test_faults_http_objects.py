"""One read from a plain web server against each fault: the object's own bytes or the right typed error."""

import json
import random
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import trustme

from headrace.demo.identity import Tls
from headrace.source.files import INDEX_NAME
from headrace.source.object_uri import parse_object
from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import read_range, read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    Changed,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TimedOut,
    TlsError,
    TransientError,
    Truncated,
    Unreachable,
    Unsupported,
)
from headrace.store.http.redirects import MAX_REDIRECTS
from headrace.store.web.settings import resolve_web_settings
from headrace.store.web.store import HttpReader, HttpStore
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.retry import RetryPolicy, persistently
from headrace.stream.transfer.transfer import Transfer
from tests.faults import server as faults
from tests.faults.opening import PATIENT_S, STALL_TIMEOUT_S, target_of
from tests.faults.server import Asked, Behaviour, Exchange, FaultServer, Stored, fault_server

NAME = "model.safetensors"
KEY = f"model/{NAME}"
DATA = random.Random(1).randbytes(300_000)
FIRST, LENGTH = 1_000, 200_000
LAST = FIRST + LENGTH - 1
TOKEN = "bearer-token-0123456789"
SIGNATURE = "deadbeefdeadbeef"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def store_of(server: FaultServer, *, stall_timeout_s: float = PATIENT_S, **variables: str) -> HttpStore:
    source = parse_source(f"{server.url}/bucket/model/")
    return HttpStore(source, resolve_web_settings(variables), stall_timeout_s=stall_timeout_s)


def presigned_store(server: FaultServer, **variables: str) -> HttpStore:
    source, name = parse_object(f"{server.url}/bucket/{KEY}?X-Amz-Date=1&X-Amz-Signature={SIGNATURE}")
    assert name == NAME
    return HttpStore(source, resolve_web_settings(variables), stall_timeout_s=STALL_TIMEOUT_S)


@pytest.fixture
def item(server: FaultServer) -> ObjectInfo:
    found = store_of(server).look_up(NAME, 1).item
    server.log.clear()
    return found


@pytest.fixture
def reader(server: FaultServer) -> Iterator[HttpReader]:
    opened = store_of(server, stall_timeout_s=STALL_TIMEOUT_S).open_reader()
    yield opened
    opened.close()


def read_persistently(reader: HttpReader, item: ObjectInfo) -> bytes:
    memory, target = target_of(LENGTH)
    persistently(lambda: reader.read_into(item, FIRST, target), RetryPolicy(attempts=3), lambda seconds: None)
    return bytes(memory)


# ---- resumed and repeated

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
    name: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    behaviour, received = RESUMED[name]
    server.play(behaviour)
    assert read_persistently(reader, item) == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST), (FIRST + received, LAST)]


def test_after_a_reset_no_byte_that_arrived_is_asked_for_again(
    server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(faults.reset_body(120_000))
    memory, target = target_of(LENGTH)
    with pytest.raises(TransientError):
        reader.read_into(item, FIRST, target)
    arrived = target.received
    reader.read_into(item, FIRST, target)
    assert memory == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST), (FIRST + arrived, LAST)]


REPEATED: dict[str, Behaviour] = {
    "500": faults.error(500),
    "502": faults.error(502),
    "503": faults.error(503),
    "504": faults.error(504),
    "429": faults.error(429),
    "408": faults.error(408),
    "closed before the head": faults.close_before_head,
    "closed in the head": faults.close_in_head,
    "no HTTP": faults.garbage,
    "compressed on the way": faults.gzipped_on_the_way,
    "a head without end": faults.oversized_head,
    "no answer": faults.stall_before_head,
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_failed_request_is_repeated(
    name: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(REPEATED[name])
    assert read_persistently(reader, item) == DATA[FIRST : FIRST + LENGTH]
    assert server.ranges == [(FIRST, LAST)] * 2


@pytest.mark.parametrize("name", REPEATED)
def test_a_request_that_fails_each_time_is_a_transient_error_that_speaks_of_no_other_store(
    name: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(*[REPEATED[name]] * 4)
    with pytest.raises(TransientError) as caught:
        read_persistently(reader, item)
    assert "AWS" not in str(caught.value) and "S3" not in str(caught.value)


NOW, LATER = "Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:45 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": LATER, "Date": NOW}, 40.0),
        ({"Retry_After": NOW, "Date": LATER}, 0.0),
        ({"Retry_After": LATER}, None),
        ({"Retry_After": "soon", "Date": NOW}, None),
    ],
)
def test_a_server_that_asks_to_wait_says_how_long_in_seconds_or_as_a_date(
    headers: dict[str, str], seconds: float | None, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(faults.error(503, **headers))
    with pytest.raises(Throttled) as caught:
        read_whole(reader, item)
    assert caught.value.retry_after_s == seconds


# ---- unusual but right

FINE: dict[str, Behaviour] = {
    "trickled head and body": faults.trickle(1_999),
    "chunked": faults.chunked(4_096),
    "ended by the connection": faults.until_close(),
    "1xx before": faults.interim,
    "identity": faults.encoded("identity"),
    "without an ETag": faults.tagged(""),
    "closed afterwards": faults.close_after,
    "said to be closed afterwards": faults.connection_close,
}


@pytest.mark.parametrize("name", FINE)
def test_an_unusual_but_right_answer_is_taken_and_reading_goes_on(
    name: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(FINE[name])
    assert read_range(reader, item, FIRST, LENGTH) == DATA[FIRST : FIRST + LENGTH]
    assert read_range(reader, item, 5, 50) == DATA[5:55]
    assert server.ranges == [(FIRST, LAST), (5, 54)]


def test_a_server_that_closes_every_connection_after_one_answer_is_read_to_the_end(
    server: FaultServer, item: ObjectInfo
) -> None:
    server.play(*[faults.close_after] * 30)
    memory = bytearray(len(DATA))
    plan = plan_reads([Placement(0, 0, len(DATA), 0, 0, "U8", "U8")], 20_000)
    Transfer(plan, [item], store_of(server), memoryview(memory), concurrency=3).wait()
    assert memory == DATA


def test_a_whole_object_that_was_asked_for_may_come_with_200(
    server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(faults.whole)
    assert read_whole(reader, item) == DATA


def test_honest_reads_share_one_connection(server: FaultServer, reader: HttpReader, item: ObjectInfo) -> None:
    for start in range(0, 100, 10):
        read_range(reader, item, start, 10)
    assert len({asked.connection for asked in server.log}) == 1


def put_folder(server: FaultServer, shards: int) -> list[str]:
    """A model of several shards; the names of all its files."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    index = json.dumps({"weight_map": {f"w{number}": name for number, name in enumerate(names)}}).encode()
    server.objects.clear()
    server.objects[f"model/{INDEX_NAME}"] = Stored.of(index)
    server.objects.update({f"model/{name}": Stored.of(name.encode()) for name in names})
    return [*names, INDEX_NAME]


@pytest.mark.parametrize(
    "failure", [faults.error(500, Retry_After="0"), faults.error(503, Retry_After="0"), faults.garbage]
)
def test_a_folder_is_listed_although_each_look_up_fails_twice(
    failure: Behaviour, server: FaultServer
) -> None:
    names = put_folder(server, 12)
    asked: Counter[str] = Counter()

    def flaky(exchange: Exchange) -> None:
        asked[exchange.asked.path] += 1
        (failure if asked[exchange.asked.path] <= 2 else faults.honest)(exchange)

    server.usual = flaky
    assert [item.name for item in store_of(server).list().objects] == sorted(names)
    assert set(asked.values()) == {3}


def test_a_look_up_that_always_fails_ends_the_listing(server: FaultServer) -> None:
    put_folder(server, 3)
    server.usual = faults.error(503, Retry_After="0")
    with pytest.raises(Throttled):
        store_of(server).list()
    assert Counter(asked.path for asked in server.log)[f"/bucket/model/{INDEX_NAME}"] == 4


def test_a_silent_server_is_asked_for_a_listing_once(server: FaultServer) -> None:
    put_folder(server, 3)
    server.usual = faults.stall_before_head
    with pytest.raises(TimedOut):
        store_of(server, stall_timeout_s=STALL_TIMEOUT_S).list()
    assert Counter(asked.path for asked in server.log)[f"/bucket/model/{INDEX_NAME}"] == 1


# ---- wrong

REFUSED: dict[str, tuple[Behaviour, type[StoreError], str]] = {
    "401": (faults.error(401), NoCredentials, "HEADRACE_HTTP_TOKEN"),
    "403": (faults.error(403), AccessDenied, "does not allow it"),
    "removed": (faults.error(404), Changed, "removed after it was listed"),
    "gone": (faults.error(410), Changed, "removed after it was listed"),
    "replaced": (faults.error(412), Changed, "replaced after it was listed"),
    "shorter": (faults.error(416), Truncated, "shorter than it was"),
    "400": (faults.error(400), Unsupported, "refuses the request"),
    "501": (faults.error(501), Unsupported, "refuses the request"),
    "no Content-Range": (faults.content_range(None), Unsupported, "no valid Content-Range"),
    "unknown total": (faults.content_range(f"bytes {FIRST}-{LAST}/*"), Unsupported, "no valid Content-Range"),
    "truncated": (faults.content_range(f"bytes {FIRST}-{LAST}/299999"), Changed, "299,999 bytes"),
    "grown": (faults.content_range(f"bytes {FIRST}-{LAST}/300001"), Changed, "300,001 bytes"),
    "shifted bytes": (faults.shifted(1), Unsupported, f"{FIRST + 1}-{LAST + 1} were sent"),
    "the whole object": (faults.whole, Unsupported, "the whole object was sent"),
    "gzip": (faults.gzipped, Unsupported, "without Content-Encoding"),
    "another ETag": (faults.tagged('"0123456789abcdef"'), Changed, "now 0123456789abcdef"),
    "longer body": (faults.longer_body(1), Unsupported, "the body has 200001 bytes"),
    "the body twice": (faults.duplicated, Unsupported, "the body has 400000 bytes"),
    "the body twice, chunked": (faults.duplicated_chunked, Unsupported, "longer than the 200,000 bytes"),
    "longer chunked body": (faults.chunked(9_999, extra=b"?"), Unsupported, "longer than the 200,000 bytes"),
    "redirect to nowhere": (faults.error(302), Unsupported, "without saying where to"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_answer_is_a_typed_error_that_names_the_object_and_the_next_read_is_right(
    name: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    behaviour, kind, said = REFUSED[name]
    server.play(behaviour)
    with pytest.raises(kind) as caught:
        read_persistently(reader, item)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert f"{server.url}/bucket/{KEY}" in str(caught.value)
    assert "AWS" not in str(caught.value)
    assert read_range(reader, item, 3, 100) == DATA[3:103]


def test_a_server_that_ignores_conditions_is_noticed_by_its_etag(
    server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    new = Stored.of(DATA[::-1])

    def behave(exchange: Exchange) -> None:
        exchange.stored = new
        exchange.head()
        exchange.send(exchange.wanted)

    server.play(faults.short_body(100), behave)
    memory, target = target_of(LENGTH)
    with pytest.raises(TransientError):
        reader.read_into(item, FIRST, target)
    with pytest.raises(Changed):
        reader.read_into(item, FIRST, target)
    assert bytes(memory[100:]) == bytes(LENGTH - 100)


def test_without_etags_the_time_of_the_last_change_tells(server: FaultServer) -> None:
    server.objects[KEY] = Stored(DATA, "")
    store = store_of(server)
    item = store.look_up(NAME, 1).item
    assert item.version == ""
    reader = store.open_reader()
    assert read_range(reader, item, 0, 10) == DATA[:10]

    def rewritten(exchange: Exchange) -> None:
        exchange.head(Last_Modified=LATER)
        exchange.send(exchange.wanted)

    server.play(rewritten)
    with pytest.raises(Changed, match="written to after it was listed"):
        read_range(reader, item, 0, 10)


def test_reads_are_pinned_and_ask_for_plain_bytes(
    server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    read_whole(reader, item)
    (asked,) = server.log
    assert asked.headers["if-match"] == server.objects[KEY].etag
    assert asked.headers["accept-encoding"] == "identity"
    assert "authorization" not in asked.headers


@pytest.mark.parametrize("change", ["replaced", "truncated", "grown", "removed"])
def test_an_object_that_changes_during_a_load_ends_it(
    change: str, server: FaultServer, item: ObjectInfo
) -> None:
    new = {"replaced": DATA[::-1], "truncated": DATA[:-1], "grown": DATA + b"+"}.get(change)

    def behave(exchange: Exchange) -> None:
        faults.honest(exchange)
        if new is None:
            exchange.server.objects.pop(KEY, None)
        else:
            exchange.server.objects[KEY] = Stored.of(new)

    server.play(behave)
    plan = plan_reads([Placement(0, 0, len(DATA), 0, 0, "U8", "U8")], 20_000)
    transfer = Transfer(plan, [item], store_of(server), memoryview(bytearray(len(DATA))), concurrency=1)
    with pytest.raises(Changed, match=NAME):
        transfer.wait()


# ---- redirects


def redirect(location: str, status: int = 302) -> Behaviour:
    def behave(exchange: Exchange) -> None:
        exchange.send(faults.head_bytes(status, {"Location": location, "Content-Length": "4"}) + b"away")

    return behave


@pytest.fixture
def elsewhere() -> Iterator[FaultServer]:
    with fault_server({"other/place": DATA}) as running:
        yield running


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_and_remembered(
    status: int, server: FaultServer, elsewhere: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(redirect(f"{elsewhere.url}/bucket/other/place?sig={SIGNATURE}", status))
    for start in (0, 100):
        assert read_range(reader, item, start, 50) == DATA[start : start + 50]
    assert len(server.log) == 1
    assert [asked.query for asked in elsewhere.log] == [{"sig": SIGNATURE}] * 2


def test_a_redirect_within_the_server_may_be_relative(
    server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.objects["model/v2/w"] = Stored.of(DATA)
    server.play(redirect("v2/w"))
    assert read_range(reader, item, 0, 50) == DATA[:50]
    assert server.log[-1].path == "/bucket/model/v2/w"


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_redirects_target_that_expires_is_asked_for_anew(
    status: int, server: FaultServer, elsewhere: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(
        redirect(f"{elsewhere.url}/bucket/other/place?sig=old"),
        redirect(f"{elsewhere.url}/bucket/other/place?sig=new"),
    )
    assert read_range(reader, item, 0, 50) == DATA[:50]
    elsewhere.play(faults.error(status))
    assert read_range(reader, item, 50, 50) == DATA[50:100]
    assert [asked.query["sig"] for asked in elsewhere.log] == ["old", "old", "new"]


def test_a_redirects_target_that_vanishes_is_asked_for_anew(
    server: FaultServer, elsewhere: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(redirect(f"{elsewhere.url}/bucket/other/place"))
    read_range(reader, item, 0, 50)
    elsewhere.stop()
    with pytest.raises((TransientError, Unreachable)):
        read_range(reader, item, 50, 50)
    assert read_range(reader, item, 50, 50) == DATA[50:100]


def test_the_token_goes_to_the_named_host_and_to_no_other(
    server: FaultServer, elsewhere: FaultServer, item: ObjectInfo
) -> None:
    reader = store_of(server, HEADRACE_HTTP_TOKEN=TOKEN).open_reader()
    server.play(redirect(f"{elsewhere.url}/bucket/other/place"))
    assert read_range(reader, item, 0, 50) == DATA[:50]
    assert [asked.headers.get("authorization") for asked in server.log] == [f"Bearer {TOKEN}"]
    assert [asked.headers.get("authorization") for asked in elsewhere.log] == [None]


def test_a_circle_of_redirects_ends(server: FaultServer, reader: HttpReader, item: ObjectInfo) -> None:
    server.play(*[redirect(f"/bucket/{KEY}")] * 20)
    with pytest.raises(Unsupported, match=f"more than {MAX_REDIRECTS} times"):
        read_range(reader, item, 0, 10)
    assert len(server.log) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("ftp://h/hush", "neither http:// nor https://"),
        ("http://user:hush@h/x", "user name or password"),
        ("http://[::1/hush", "no address"),
        ("http://h/../hush/%2e%2e", "between slashes"),
        ("file:///etc/hush", "neither http:// nor https://"),
    ],
)
def test_a_redirect_to_what_cannot_be_used_is_refused_and_not_repeated(
    location: str, said: str, server: FaultServer, reader: HttpReader, item: ObjectInfo
) -> None:
    server.play(redirect(location))
    with pytest.raises(Unsupported, match=said) as caught:
        read_range(reader, item, 0, 10)
    assert "hush" not in str(caught.value)


def test_a_redirect_from_tls_to_plain_http_is_refused(loopback_tls: Tls, elsewhere: FaultServer) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    secure = FaultServer({KEY: Stored.of(DATA)}, tls=context)
    try:
        store = store_of(secure, REQUESTS_CA_BUNDLE=str(loopback_tls.certificate), HEADRACE_HTTP_TOKEN=TOKEN)
        secure.play(redirect(f"{elsewhere.url}/bucket/other/place?sig={SIGNATURE}"))
        with pytest.raises(Unsupported, match=f"from https:// to {elsewhere.url}") as caught:
            store.look_up(NAME, 10)
        assert SIGNATURE not in str(caught.value)
        assert elsewhere.log == []
        found = store.look_up(NAME, 10)
        assert read_whole(store.open_reader(), found.item) == DATA
        assert {asked.headers["authorization"] for asked in secure.log} == {f"Bearer {TOKEN}"}
    finally:
        secure.stop()


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_untrusted_certificate_names_the_variable_that_counts(
    variable: str, loopback_tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    secure = FaultServer({}, tls=context)
    try:
        with tempfile.NamedTemporaryFile(suffix=".pem") as other:
            trustme.CA().cert_pem.write_to_path(other.name)
            named = {variable: other.name} if variable == "REQUESTS_CA_BUNDLE" else {}
            with pytest.raises(TlsError, match="is not trusted by") as caught:
                store_of(secure, **named).look_up(NAME, 10)
        assert caught.value.remedy == f"Set {variable} to a file with the CA that signed it."
    finally:
        secure.stop()


# ---- who asks


def asks_for(token: str) -> Callable[[Asked], bytes | None]:
    def refuse(asked: Asked) -> bytes | None:
        right = asked.headers.get("authorization") == f"Bearer {token}"
        return None if right else faults.error_answer(401)

    return refuse


def test_a_bearer_token_opens_what_wants_one(server: FaultServer) -> None:
    server.refuse = asks_for(TOKEN)
    assert store_of(server, HEADRACE_HTTP_TOKEN=f" {TOKEN}\n").look_up(NAME, 10).prefix == DATA[:10]


def test_a_token_that_the_server_does_not_take_is_named_and_not_shown(server: FaultServer) -> None:
    server.refuse = asks_for("another")
    with pytest.raises(AccessDenied, match="HEADRACE_HTTP_TOKEN") as caught:
        store_of(server, HEADRACE_HTTP_TOKEN=TOKEN).look_up(NAME, 10)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["two words", "a\r\nX-Injected: 1", "é", "a\x7f"])
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(NoCredentials, match="no request can carry") as caught:
        resolve_web_settings({"HEADRACE_HTTP_TOKEN": token})
    assert token not in str(caught.value)


def test_settings_and_stores_do_not_show_their_token(server: FaultServer) -> None:
    assert TOKEN not in repr(store_of(server, HEADRACE_HTTP_TOKEN=TOKEN).settings)


def test_a_presigned_address_is_sent_with_its_query_and_without_a_token(server: FaultServer) -> None:
    store = presigned_store(server, HEADRACE_HTTP_TOKEN=TOKEN)
    item = store.look_up(NAME, 10).item
    assert read_whole(store.open_reader(), item) == DATA
    assert [asked.query for asked in server.log] == [{"X-Amz-Date": "1", "X-Amz-Signature": SIGNATURE}] * 2
    assert not any("authorization" in asked.headers for asked in server.log)


SECRETIVE: dict[str, Behaviour] = {
    **REPEATED,
    **{name: behaviour for name, (behaviour, _, _) in REFUSED.items()},
    "circle": redirect(f"/bucket/{KEY}?again={SIGNATURE}"),
}


@pytest.mark.parametrize("name", SECRETIVE)
def test_no_error_shows_a_signature(name: str, server: FaultServer, item: ObjectInfo) -> None:
    store = presigned_store(server)
    server.play(*[SECRETIVE[name]] * 10)
    with pytest.raises(StoreError) as caught:
        read_persistently(store.open_reader(), item)
    assert SIGNATURE not in str(caught.value) and SIGNATURE not in repr(caught.value)


def xml_error(status: int, code: str, message: str) -> Behaviour:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()

    def behave(exchange: Exchange) -> None:
        exchange.send(faults.head_bytes(status, {"Content-Length": str(len(body))}) + body)

    return behave


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (xml_error(403, "AccessDenied", "Request has expired"), ExpiredCredentials, "signature in the address has expired"),
        (xml_error(400, "ExpiredToken", "The provided token"), ExpiredCredentials, "signature in the address has expired"),
        (xml_error(403, "SignatureDoesNotMatch", "x"), AccessDenied, "presigned address"),
    ],
)  # fmt: skip
def test_a_presigned_address_that_no_longer_holds_says_so(
    answer: Behaviour, kind: type[StoreError], said: str, server: FaultServer
) -> None:
    server.play(answer)
    with pytest.raises(kind, match=said):
        presigned_store(server).look_up(NAME, 10)


# ---- not there, not that


def test_what_is_not_there_is_not_found(server: FaultServer) -> None:
    with pytest.raises(NotFound, match="no such object"):
        store_of(server).look_up("another.safetensors", 10)


def test_a_page_instead_of_the_object_is_not_the_object(server: FaultServer) -> None:
    def page(exchange: Exchange) -> None:
        body = b"<!doctype html><title>Sign in</title>"
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))}
        exchange.send(faults.head_bytes(200, headers) + body)

    server.play(page)
    with pytest.raises(NotFound, match=r"web page \(text/html\) instead") as caught:
        store_of(server).look_up(NAME, 10)
    assert "HEADRACE_HTTP_TOKEN" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("http://no-such-host.invalid/m", Unreachable, "cannot be found"),
        ("http://127.0.0.1:{closed}/m", Unreachable, "connection refused"),
        ("http://127.0.0.1:{secure}/bucket/model", BadEndpoint, "Write https://"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_speaks_of_no_other_store(
    url: str, kind: type[StoreError], said: str, server: FaultServer
) -> None:
    with fault_server({}) as gone:
        closed = gone.port
    # What nginx answers on a TLS port.
    server.play(faults.error(400, "The plain HTTP request was sent to HTTPS port"))
    source = parse_source(url.format(closed=closed, secure=server.port))
    with pytest.raises(kind, match=said) as caught:
        HttpStore(source, resolve_web_settings({}), stall_timeout_s=STALL_TIMEOUT_S).look_up(NAME, 10)
    assert "AWS" not in str(caught.value) and "S3" not in str(caught.value)


def test_abort_ends_a_stalled_read_and_later_ones(server: FaultServer, item: ObjectInfo) -> None:
    store = HttpStore(parse_source(f"{server.url}/bucket/model"), resolve_web_settings({}))
    reader = store.open_reader()
    server.play(faults.stall(10))
    raised: list[StoreError] = []

    def read() -> None:
        try:
            read_whole(reader, item)
        except StoreError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    server.stalled.get()
    reader.abort()
    thread.join()
    with pytest.raises(TransientError, match="cancelled"):
        read_whole(reader, item)
    assert isinstance(raised[0], TransientError)
