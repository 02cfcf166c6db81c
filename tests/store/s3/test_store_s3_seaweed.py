"""The real store judges our signatures, quoting and errors."""

import hashlib
import socket

import pytest

from headrace.demo.identity import Identity, Tls
from headrace.demo.store import SeaweedStore, start_store
from headrace.source.uri import parse_source
from headrace.store.base import open_store, read_range, read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    Changed,
    NoCredentials,
    NotFound,
    StoreError,
    TlsError,
    TransientError,
    Unreachable,
)
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from tests.identities import NOBODY, READER

KEYS = [
    "plain.txt", "with space.txt", "plus+plus.txt", "percent%.txt", "percent%2B.txt", "ünï.txt", "日本語.txt",
    "emoji😀.txt", "a#b?c&d=e.txt", "quote'\"<>.txt", "~!$()*,;:@.txt", "..dots..txt", "semi;colon.txt",
]  # fmt: skip
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def weed(seaweed: SeaweedStore) -> SeaweedStore:
    """The store, with these objects in a bucket of ours."""
    client = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    client.create_bucket(Bucket="bucket")
    for key in KEYS:
        client.put_object(Bucket="bucket", Key=f"odd keys/m+1/{key}", Body=key.encode())
    client.put_object(Bucket="bucket", Key="model/config.json", Body=b"{}")
    return seaweed


def store_at(weed: SeaweedStore, uri: str, *, identity: Identity | None = None, **changes: str) -> S3Store:
    environment = {**weed.environment(identity), **changes}
    return S3Store(parse_source(uri), resolve_s3_settings({k: v for k, v in environment.items() if v}))


def test_odd_keys_are_listed_by_their_names(weed: SeaweedStore) -> None:
    listing = store_at(weed, "s3://bucket/odd keys/m+1").list()
    assert [item.name for item in listing.objects] == sorted(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_an_object_with_an_odd_key_is_read(name: str, weed: SeaweedStore) -> None:
    store = store_at(weed, "s3://bucket/odd keys/m+1")
    item = store.list().find(name)
    assert item is not None
    assert read_whole(store.open_reader(), item) == name.encode()


def test_more_objects_than_a_page_holds_are_listed(weed: SeaweedStore) -> None:
    client = make_s3_client(resolve_s3_settings(weed.environment()), attempts=1)
    for number in range(1_001):
        client.put_object(Bucket="bucket", Key=f"many/{number:05d}", Body=b"")
    store = store_at(weed, "s3://bucket/many/")
    assert [item.name for item in store.list().objects] == [f"{number:05d}" for number in range(1_001)]


def test_an_object_uploaded_in_parts_is_pinned_by_its_odd_etag(weed: SeaweedStore) -> None:
    client = make_s3_client(resolve_s3_settings(weed.environment()), attempts=1)
    parts = [b"a" * (5 << 20), b"b" * 100]
    upload = client.create_multipart_upload(Bucket="bucket", Key="parts/x")["UploadId"]
    done = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(
                Bucket="bucket", Key="parts/x", UploadId=upload, PartNumber=number, Body=part
            )["ETag"],
        }
        for number, part in enumerate(parts, start=1)
    ]
    client.complete_multipart_upload(
        Bucket="bucket", Key="parts/x", UploadId=upload, MultipartUpload={"Parts": done}
    )
    store = store_at(weed, "s3://bucket/parts")
    (item,) = store.list().objects
    assert item.version.endswith("-2")
    data = read_whole(store.open_reader(), item)
    assert hashlib.sha256(data).digest() == hashlib.sha256(b"".join(parts)).digest()


def test_an_object_that_is_overwritten_after_the_listing_is_not_read(weed: SeaweedStore) -> None:
    client = make_s3_client(resolve_s3_settings(weed.environment()), attempts=1)
    client.put_object(Bucket="bucket", Key="changing/x", Body=b"first")
    store = store_at(weed, "s3://bucket/changing")
    (item,) = store.list().objects
    reader = store.open_reader()
    assert read_range(reader, item, 0, 2) == b"fi"
    client.put_object(Bucket="bucket", Key="changing/x", Body=b"again")
    with pytest.raises(Changed, match="replaced after it was listed"):
        read_range(reader, item, 2, 3)


def test_an_object_that_is_removed_after_the_listing_is_a_change(weed: SeaweedStore) -> None:
    client = make_s3_client(resolve_s3_settings(weed.environment()), attempts=1)
    client.put_object(Bucket="bucket", Key="going/x", Body=b"first")
    store = store_at(weed, "s3://bucket/going")
    (item,) = store.list().objects
    client.delete_object(Bucket="bucket", Key="going/x")
    with pytest.raises(Changed, match="removed after it was listed"):
        read_whole(store.open_reader(), item)


def test_who_may_read_reads(weed: SeaweedStore) -> None:
    store = store_at(weed, "s3://bucket/model", identity=READER)
    (item,) = store.list().objects
    assert read_whole(store.open_reader(), item) == b"{}"


@pytest.mark.parametrize(
    "path",
    ["s3://bucket/model", "s3://bucket/model/", "s3://bucket//model//", "S3://bucket/model"],
)
def test_slashes_around_the_prefix_do_not_matter(path: str, weed: SeaweedStore) -> None:
    assert [item.name for item in store_at(weed, path).list().objects] == ["config.json"]


def test_the_root_of_a_bucket_lists_its_folders(weed: SeaweedStore) -> None:
    assert "model" in store_at(weed, "s3://bucket").list().folders


def test_the_environment_leads_to_the_store(weed: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)
    assert open_store(parse_source("s3://bucket/model")).list().find("config.json") is not None


# name → uri, who, changed variables, the error, words in its text
CASES: dict[str, tuple[str, Identity | None, dict[str, str], type[StoreError], list[str]]] = {
    "bucket missing": (
        "s3://no-such-bucket/model", None, {}, NotFound,
        ["no bucket no-such-bucket", "HTTP 404, NoSuchBucket, request id ", "make the bucket"],
    ),
    "prefix missing": (
        "s3://bucket/modle", None, {}, NotFound, ["s3://bucket/modle", "In s3://bucket there is:", "model/"],
    ),
    "access denied": (
        "s3://bucket/model", NOBODY, {}, AccessDenied,
        ["HTTP 403, AccessDenied, request id ", NOBODY.access_key[:4], "s3:ListBucket"],
    ),
    "wrong secret": (
        "s3://bucket/model", None, {"AWS_SECRET_ACCESS_KEY": "wrong-secret-wrong-secret"}, BadSignature,
        ["HTTP 403, SignatureDoesNotMatch", "Check AWS_SECRET_ACCESS_KEY"],
    ),
    "unknown key id": (
        "s3://bucket/model", None, {"AWS_ACCESS_KEY_ID": "AKUNKNOWN0000000"}, BadSignature,
        ["HTTP 403, InvalidAccessKeyId", "AKUN…00", "Check AWS_ACCESS_KEY_ID"],
    ),
    "bogus session token": (
        "s3://bucket/model", None, {"AWS_SESSION_TOKEN": "bogus-session-token"}, StoreError,
        ["HTTP 403", "AWS_SESSION_TOKEN"],
    ),
    "TLS to a plain port": (
        "s3://bucket/model", None, {"AWS_ENDPOINT_URL": "https"}, TlsError,
        ["TLS handshake failed", "http:// in AWS_ENDPOINT_URL"],
    ),
    "no scheme": (
        "s3://bucket/model", None, {"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, BadEndpoint,
        ["127.0.0.1:9000", "AWS_ENDPOINT_URL has no scheme", "http://HOST:PORT"],
    ),
    "a path in the endpoint": (
        "s3://bucket/model", None, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/bucket"}, BadEndpoint,
        ["without a path", "belongs in the s3:// URI"],
    ),
    "no credentials": (
        "s3://bucket/model", None, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, NoCredentials,
        ["No AWS credentials were found", "AWS_ACCESS_KEY_ID"],
    ),
    "no secret": (
        "s3://bucket/model", None, {"AWS_SECRET_ACCESS_KEY": ""}, NoCredentials,
        ["AWS_SECRET_ACCESS_KEY is not set"],
    ),
    "no key id": (
        "s3://bucket/model", None, {"AWS_ACCESS_KEY_ID": ""}, NoCredentials,
        ["AWS_ACCESS_KEY_ID is not set"],
    ),
    "no profile of that name": (
        "s3://bucket/model", None,
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
         "AWS_PROFILE": "nobody-has-it"},
        NoCredentials, ["nobody-has-it", "unset AWS_PROFILE"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_user_can_get_wrong_is_told_with_cause_and_remedy(
    name: str, weed: SeaweedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, identity, changes, kind, said = CASES[name]
    if changes.get("AWS_ENDPOINT_URL") == "https":
        changes = {"AWS_ENDPOINT_URL": weed.endpoint_url.replace("http:", "https:")}
    if "AWS_PROFILE" in changes:
        monkeypatch.setenv("AWS_PROFILE", changes["AWS_PROFILE"])
    with pytest.raises(kind) as caught:
        store_at(weed, uri, identity=identity, **changes).list()
    text = str(caught.value)
    for words in said:
        assert words in text
    assert caught.value.remedy
    secrets = {weed.secret_key, NOBODY.secret_key, "wrong-secret-wrong-secret", "bogus-session-token"}
    assert not [secret for secret in secrets if secret in text]


def test_a_closed_port_is_told_as_such(weed: SeaweedStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Unreachable, match="connection refused") as caught:
        store_at(weed, "s3://bucket/model", AWS_ENDPOINT_URL=url).list()
    assert caught.value.uri == url


def test_a_listener_that_never_answers_is_given_up(weed: SeaweedStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            **weed.environment(),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        settings = resolve_s3_settings(environment)
        with pytest.raises(TransientError, match=r"No byte came for 0\.25 s"):
            S3Store(parse_source("s3://bucket/model"), settings, stall_timeout_s=0.25).list()


def test_a_store_is_read_over_tls(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> None:
    with start_store(tmp_path_factory.mktemp("weed-tls"), tls=loopback_tls) as weed:
        settings = resolve_s3_settings(weed.environment())
        client = make_s3_client(settings, attempts=1)
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="model/x", Body=bytes(range(256)) * 4_000)
        store = S3Store(parse_source("s3://bucket/model"), settings)
        (item,) = store.list().objects
        assert read_range(store.open_reader(), item, 250, 500_000) == (bytes(range(256)) * 4_000)[250:500_250]
        plain = resolve_s3_settings(
            {**weed.environment(), "AWS_ENDPOINT_URL": weed.endpoint_url.replace("https:", "http:")}
        )
        with pytest.raises(BadEndpoint, match="Write https://"):
            S3Store(parse_source("s3://bucket/model"), plain).list()
