"""Listings: pages, odd keys, and answers that are no listing at all. The store here is scripted."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store.base import read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    Changed,
    NotFound,
    StoreError,
    Unsupported,
    WrongRegion,
)
from headrace.store.s3.listing import NotAListing, parse_page
from headrace.store.s3.store import S3Store
from headrace.store.versions import is_weak, normal_etag
from tests.faults import server as faults
from tests.faults.opening import SECRET, only_object, store_of
from tests.faults.server import FaultServer, Stored, error_answer, fault_server, head_bytes, list_answer
from tests.profiles import examples

SEEDED = settings(max_examples=examples(120))
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({"model/a": b"content a", "model/b": b"content b"}) as running:
        yield running


@pytest.fixture
def store(server: FaultServer) -> S3Store:
    return store_of(server)


def names(store: S3Store) -> list[str]:
    return [item.name for item in store.list().objects]


def page(inner: str) -> bytes:
    return f"<ListBucketResult>{inner}</ListBucketResult>".encode()


def contents(key: str, *, size: str = "1", etag: str = "&quot;e&quot;") -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag></Contents>"


def test_all_pages_are_read(server: FaultServer, store: S3Store) -> None:
    server.objects = {f"model/{number:04d}": Stored.of(b"x") for number in range(2_500)}
    assert names(store) == [f"{number:04d}" for number in range(2_500)]
    assert len(server.log) == 3


def test_only_what_lies_under_the_prefix_is_listed(server: FaultServer, store: S3Store) -> None:
    server.objects["models/c"] = Stored.of(b"x")
    server.objects["modelc"] = Stored.of(b"x")
    assert names(store) == ["a", "b"]


def test_a_store_that_knows_no_delimiter_is_understood(server: FaultServer, store: S3Store) -> None:
    server.objects["model/sub/c"] = Stored.of(b"x")
    server.objects["model/sub/d"] = Stored.of(b"x")
    listing = store.list()
    assert [item.name for item in listing.objects] == ["a", "b"]
    assert listing.folders == ("sub",)


def test_the_listing_tells_size_version_and_time(store: S3Store, server: FaultServer) -> None:
    item = store.list().objects[0]
    assert (item.key, item.name, item.size_bytes) == ("model/a", "a", 9)
    assert f'"{item.version}"' == server.objects["model/a"].etag
    assert item.modified_s == 1767323045


@pytest.mark.parametrize(
    ("quoted", "key"),
    [
        ("m/a%20b%2Bc%25", "m/a b+c%"),
        ("m/a+b", "m/a b"),
        ("m/%C3%A4%E6%97%A5", "m/ä日"),
        ("m/%2F..", "m//.."),
    ],
)
def test_keys_are_unquoted_where_the_store_says_that_it_quotes_them(quoted: str, key: str) -> None:
    listed = parse_page(page("<EncodingType>url</EncodingType>" + contents(quoted)), "")
    assert listed.folders == ("m",)
    assert not listed.objects
    (item,) = parse_page(page("<EncodingType>url</EncodingType>" + contents(quoted)), key[:-1]).objects
    assert item.key == key


def test_keys_are_taken_as_they_are_where_the_store_does_not_say_so() -> None:
    (item,) = parse_page(page(contents("a+b%20c")), "").objects
    assert item.key == "a+b%20c"


def test_the_folders_own_marker_is_no_object() -> None:
    assert parse_page(page(contents("m/")), "m/").objects == ()


def test_folders_lose_one_slash() -> None:
    inner = "<CommonPrefixes><Prefix>m/sub/</Prefix></CommonPrefixes>"
    assert parse_page(page(inner), "m/").folders == ("sub",)


@pytest.mark.parametrize(
    ("etag", "normal"),
    [
        ('"abc"', "abc"),
        ("abc", "abc"),
        ('"abc-12"', "abc-12"),
        ('W/"abc"', "W/abc"),
        ("&quot;abc&quot;", "abc"),
        (' "abc" ', "abc"),
        ("", ""),
    ],
)
def test_etags_are_compared_without_quotes(etag: str, normal: str) -> None:
    assert normal_etag(etag) == normal
    assert is_weak(normal) == etag.startswith("W/")


BOMB = (
    '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "&a;" * 10}">' for n in range(9))
    + "]><ListBucketResult><Name>&a8;</Name></ListBucketResult>"
).encode()
ENTITY = b'<!DOCTYPE b [<!ENTITY f SYSTEM "file:///etc/passwd">]><ListBucketResult>&f;</ListBucketResult>'
NOT_LISTINGS = {
    "garbage": b"\x00\x01\x02",
    "empty": b"",
    "html": b"<html><body>Console</body></html>",
    "cut off": page(contents("model/a"))[:-5],
    "entities that grow": BOMB,
    "an entity of a file": ENTITY,
    "an unknown encoding": b'<?xml version="1.0" encoding="no-such"?><ListBucketResult/>',
    "no size": page("<Contents><Key>model/a</Key><ETag>e</ETag></Contents>"),
    "a size in words": page(contents("model/a", size="many")),
    "a negative size": page(contents("model/a", size="-1")),
    "a size with an underscore": page(contents("model/a", size="1_0")),
    "a size beyond 64 bits": page(contents("model/a", size="9" * 30)),
    "a key from elsewhere": page(contents("other/a")),
    "a folder from elsewhere": page("<CommonPrefixes><Prefix>other/</Prefix></CommonPrefixes>"),
    "no key": page("<Contents><Size>1</Size></Contents>"),
    "more, but no way to it": page("<IsTruncated>true</IsTruncated>" + contents("model/a")),
}


@pytest.mark.parametrize("name", NOT_LISTINGS)
def test_what_is_no_listing_is_an_error_of_the_endpoint(
    name: str, server: FaultServer, store: S3Store
) -> None:
    body = NOT_LISTINGS[name]
    server.list_script.append(head_bytes(200, {"Content-Length": str(len(body))}) + body)
    with pytest.raises(BadEndpoint, match="does not answer a listing as an S3 store does") as caught:
        store.list()
    assert "not its web console" in caught.value.remedy
    assert len(str(caught.value)) < 1_000


@SEEDED
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda inner: page(inner)))
def test_any_bytes_are_a_listing_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        parse_page(body, "model/")
    except NotAListing:
        return
    assert b"ListBucketResult" in body


def test_a_listing_without_end_is_ended(
    server: FaultServer, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.paging.MAX_PAGES", 20)
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"
    server.list_script.extend([list_answer(more)] * 100)
    with pytest.raises(Unsupported, match="pages lie directly under this prefix"):
        store.list()
    assert len(server.log) == 20


def test_nothing_under_the_prefix_says_what_is_around_it(server: FaultServer) -> None:
    with pytest.raises(NotFound, match=r"In s3://bucket there is: model/\.") as caught:
        store_of(server, "s3://bucket/modle").list()
    assert caught.value.uri == "s3://bucket/modle"


def test_who_may_not_list_around_the_prefix_is_told_that_nothing_is_under_it(server: FaultServer) -> None:
    def only_own_prefix(asked: faults.Asked) -> bytes | None:
        return None if asked.query.get("prefix") == "modle/" else error_answer(403, "AccessDenied")

    server.refuse = only_own_prefix
    with pytest.raises(NotFound, match="Nothing lies under this prefix"):
        store_of(server, "s3://bucket/modle").list()


def test_an_object_given_for_a_folder_is_told_so(server: FaultServer) -> None:
    with pytest.raises(NotFound, match="one object, not a folder") as caught:
        store_of(server, "s3://bucket/model/a").list()
    assert caught.value.remedy == "Give the folder: s3://bucket/model."


def test_a_long_error_of_the_store_is_cut_and_put_on_one_line(server: FaultServer, store: S3Store) -> None:
    message = "very\n long " * 2_000
    body = f"<Error><Code>Odd</Code><Message>{message}</Message></Error>".encode()
    server.list_script.append(head_bytes(400, {"Content-Length": str(len(body))}) + body)
    with pytest.raises(Unsupported) as caught:
        store.list()
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_store_that_refuses_in_the_region_that_it_named_is_given_up(
    server: FaultServer, store: S3Store
) -> None:
    elsewhere = error_answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3")
    server.list_script.extend([elsewhere, elsewhere])
    with pytest.raises(WrongRegion) as caught:
        store.list()
    assert len(server.log) == 2
    assert "does not answer there" in caught.value.remedy


def test_an_endpoint_of_tls_that_is_asked_in_plain_http_says_so(server: FaultServer, store: S3Store) -> None:
    body = b"Client sent an HTTP request to an HTTPS server.\n"
    server.list_script.append(head_bytes(400, {"Content-Length": str(len(body))}) + body)
    with pytest.raises(BadEndpoint, match="Write https://"):
        store.list()


def test_no_error_shows_the_secret(server: FaultServer, store: S3Store) -> None:
    codes = [
        "SignatureDoesNotMatch",
        "InvalidAccessKeyId",
        "ExpiredToken",
        "AccessDenied",
        "NoSuchBucket",
        "",
    ]
    server.list_script.extend(error_answer(403, code) for code in codes)
    for _ in codes:
        with pytest.raises(StoreError) as caught:
            store.list()
        assert SECRET not in str(caught.value) + repr(caught.value)
    assert SECRET not in repr(store.settings)


def test_a_weak_etag_is_not_sent_as_a_condition_and_the_log_says_so(
    server: FaultServer, store: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    server.objects = {"model/a": Stored(b"content", 'W/"abc"')}
    with caplog.at_level(logging.WARNING):
        item = only_object(store)
    assert "no strong ETag for a" in caplog.text
    assert read_whole(store.open_reader(), item) == b"content"
    assert "if-match" not in server.log[-1].headers


def test_a_tag_that_a_proxy_weakened_is_the_same(server: FaultServer, store: S3Store) -> None:
    item = store.list().objects[0]
    server.play(faults.tagged(f'W/"{item.version}"'))
    assert read_whole(store.open_reader(), item) == b"content a"


@pytest.mark.parametrize("etag", ["", 'W/"abc"'])
def test_without_a_strong_tag_the_time_of_the_last_change_is_compared(
    etag: str, server: FaultServer, store: S3Store
) -> None:
    server.objects = {"model/a": Stored(b"content", etag)}
    item = only_object(store)

    def written_later(exchange: faults.Exchange) -> None:
        exchange.head(Last_Modified="Fri, 02 Jan 2026 03:04:06 GMT")
        exchange.send(exchange.wanted)

    server.play(written_later)
    with pytest.raises(Changed, match="Last-Modified differs"):
        read_whole(store.open_reader(), item)


def test_access_denied_tells_which_key_may_not(server: FaultServer, store: S3Store) -> None:
    server.list_script.append(error_answer(403, "AccessDenied"))
    with pytest.raises(AccessDenied, match="AKSC…6789 may not do this"):
        store.list()
