"""gs://: what a real server says that fake-gcs-server cannot: refusals, other generations, pages, transcoding."""

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.uri import parse_source
from headrace.store.base import Target, list_below, read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    Changed,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Unsupported,
)
from headrace.store.gcs.errors import error_of_gcs_response
from headrace.store.gcs.settings import resolve_gcs_settings
from headrace.store.gcs.store import GcsStore
from headrace.store.http.connection import Head
from tests.profiles import examples
from tests.store.scripted_gcs import (
    UPLOAD_ID,
    Answer,
    Asked,
    ScriptedGcs,
    Stored,
    error,
    scripted_gcs,
)

KEY = "m/model.safetensors"
DATA = random.Random(4).randbytes(50_000)
TOKEN = "ya29.scripted-token"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[ScriptedGcs]:
    with scripted_gcs() as running:
        running.objects[KEY] = Stored(DATA, 41)
        yield running


def store_of(server: ScriptedGcs, **variables: str) -> GcsStore:
    environ = {"HEADRACE_GCS_ENDPOINT": server.url, "NO_GCE_CHECK": "1", "CLOUDSDK_CONFIG": "/nonexistent"}
    return GcsStore(parse_source("gs://bucket/m"), resolve_gcs_settings({**environ, **variables}))


def with_token(server: ScriptedGcs) -> GcsStore:
    return store_of(server, HEADRACE_GCS_TOKEN=TOKEN)


def always(answer: Answer) -> "object":
    return lambda asked: answer


def test_reads_ask_for_the_listed_generation_and_a_bare_body(server: ScriptedGcs) -> None:
    store = with_token(server)
    (item,) = store.list().objects
    assert read_whole(store.open_reader(), item) == DATA
    asked = server.log[-1]
    assert asked.path == "/storage/v1/b/bucket/o/m%2Fmodel.safetensors"
    assert dict(asked.query) == {"alt": "media", "generation": "41"}
    assert asked.headers["accept-encoding"] == "identity"
    assert server.tokens == [f"Bearer {TOKEN}"] * 2


def test_a_listing_of_several_pages_is_read_to_its_end(server: ScriptedGcs) -> None:
    server.objects |= {f"m/{number:04}": Stored(b"x") for number in range(2_500)}
    server.objects |= {f"m/folder-{number}/x": Stored(b"x") for number in range(500)}
    listing = store_of(server).list()
    assert (len(listing.objects), len(listing.folders)) == (2_501, 500)
    assert len(list(list_below(store_of(server)))) == 3_001
    assert len(server.log) == 8


def test_a_server_that_ignores_the_generation_is_found_out(server: ScriptedGcs) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    server.objects[KEY] = Stored(DATA[::-1], 42)
    server.ignores_generation = True
    memory = bytearray(len(DATA))
    with pytest.raises(Changed, match="generation 41 of 50,000 bytes; now generation 42"):
        store.open_reader().read_into(item, 0, Target([memoryview(memory)]))
    assert memory == bytes(len(DATA))  # none of the other version's bytes was taken


def test_a_changed_object_is_told_though_nothing_of_it_may_be_seen(server: ScriptedGcs) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    server.refuse = lambda asked: (
        error(404, "notFound") if "generation" in asked.query else error(403, "forbidden")
    )
    with pytest.raises(Changed, match="now something else"):
        read_whole(store.open_reader(), item)


def test_a_checksum_of_a_generation_that_is_gone_is_a_change(server: ScriptedGcs) -> None:
    (item,) = store_of(server).list().objects
    server.objects[KEY] = Stored(DATA, 42)
    with pytest.raises(Changed):
        store_of(server).open_reader().stored_checksum(item)


def test_an_object_without_a_crc_says_so(server: ScriptedGcs) -> None:
    (item,) = store_of(server).list().objects
    server.refuse = lambda asked: Answer(200, b'{"generation": "41"}')
    assert "no CRC" in str(store_of(server).open_reader().stored_checksum(item))


def test_an_object_that_the_store_would_unpack_on_the_way_is_refused(server: ScriptedGcs) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    fields = {"x-goog-generation": "41", "x-goog-stored-content-encoding": "gzip"}
    server.refuse = lambda asked: Answer(200, DATA, fields)
    for read in (lambda: read_whole(store.open_reader(), item), lambda: store.look_up(item.name, 8)):
        with pytest.raises(Unsupported, match="Content-Encoding: gzip") as caught:
            read()
        assert caught.value.remedy == "Upload it without Content-Encoding."


def test_a_look_up_without_a_generation_is_refused(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: Answer(206, DATA[:8], {"Content-Range": f"bytes 0-7/{len(DATA)}"})
    with pytest.raises(Unsupported, match="does not name the object's generation"):
        store_of(server).look_up("model.safetensors", 8)


JSON = st.recursive(
    st.none() | st.text(max_size=20) | st.integers(),
    lambda one: (
        st.lists(one, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "errors", "message", "reason", "status"]), one)
    ),
).map(lambda value: json.dumps(value).encode())
SA = "sa@p.iam.gserviceaccount.com does not have storage.objects.list access to the bucket."


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (error(403, "forbidden", SA), AccessDenied, r"sa@p.*storage\.objects\.list.*forbidden.*objectViewer"),
        (error(403, "insufficientPermissions", "Insufficient Permission"), AccessDenied, "scope"),
        (error(403, "accessNotConfigured", "API off"), AccessDenied, "Switch the Cloud Storage API on"),
        (
            error(403, "forbidden", "Request is prohibited by organization's policy."),
            AccessDenied,
            "perimeter",
        ),
        (
            error(403, "forbidden", "Caller lacks serviceusage.services.use"),
            AccessDenied,
            "HEADRACE_GCS_USER_PROJECT",
        ),
        (
            error(400, "required", "Bucket is a requester pays bucket but no user project provided."),
            AccessDenied,
            "HEADRACE_GCS_USER_PROJECT",
        ),
        (error(400, "invalid", "Invalid bucket name: 'x'"), NotFound, "no bucket's name"),
        (error(400, "invalid", "What?"), Unsupported, "refuses the request: What"),
        (error(401, "authError", "Invalid Credentials"), ExpiredCredentials, "HEADRACE_GCS_TOKEN"),
        (error(404, "notFound"), NotFound, "no such bucket"),
        (
            Answer(404, b"<html>", {"Content-Type": "text/html"}),
            BadEndpoint,
            "does not answer as Cloud Storage",
        ),
        (error(429, "rateLimitExceeded"), Throttled, "slow down"),
        (error(403, "userRateLimitExceeded"), Throttled, "slow down"),
        (error(503, ""), Throttled, "slow down"),
        (error(503, "backendError"), TransientError, "failed"),
        (error(500, "internalError"), TransientError, "failed"),
        (error(408, ""), TransientError, "failed"),
        (error(501, ""), Unsupported, "refuses"),
        (Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), Unsupported, "HTTP 302"),
        (Answer(200, b"<html>"), BadEndpoint, "no list of objects"),
        (Answer(200, b'{"kind": "storage#buckets"}'), BadEndpoint, "HEADRACE_GCS_ENDPOINT"),
    ],
)
def test_what_the_store_says_becomes_a_typed_error(
    answer: Answer, kind: type[StoreError], said: str, server: ScriptedGcs
) -> None:
    server.refuse = lambda asked: answer
    with pytest.raises(kind, match=f"(?s){said}") as caught:
        with_token(server).list()
    assert type(caught.value) is kind
    assert TOKEN not in str(caught.value)
    if answer.headers.get("X-GUploader-UploadID") and kind is not BadEndpoint:
        assert caught.value.request_id == UPLOAD_ID


@given(st.sampled_from([400, 401, 403, 404, 409, 412, 416, 429, 500, 503]), st.binary(max_size=60) | JSON)
@settings(max_examples=examples(200))
def test_any_error_answer_becomes_a_typed_error_and_nothing_else(status: int, body: bytes) -> None:
    found = resolve_gcs_settings({"HEADRACE_GCS_TOKEN": TOKEN})
    caught = error_of_gcs_response("gs://b/x", Head(status, {}), body, found, names_object=True)
    assert isinstance(caught, StoreError)
    assert len(str(caught)) < 1_500
    assert str(caught).isprintable()


def test_how_long_to_wait_is_taken_over(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(429, "rateLimitExceeded", Retry_After="7")
    with pytest.raises(Throttled) as caught:
        store_of(server).list()
    assert caught.value.retry_after_s == 7


def test_a_token_that_the_server_repeats_is_not_shown(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(403, "forbidden", f"No: {TOKEN} (Bearer abcdef)")
    with pytest.raises(AccessDenied) as caught:
        with_token(server).list()
    assert TOKEN not in str(caught.value)
    assert "abcdef" not in str(caught.value)


def test_what_the_store_says_is_text_and_nothing_else_to_a_terminal(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(403, "for\x1bbidden", "red:\x1b[31m\nnext \x00 line")
    with pytest.raises(AccessDenied, match=r"red:\?\[31m next \? line.*for\?bidden"):
        with_token(server).list()


@pytest.mark.parametrize("status", [401, 403])
def test_an_anonymous_request_that_was_asked_for_and_is_refused(status: int, server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(status, "required", "Anonymous caller does not have access")
    with pytest.raises(AccessDenied, match="which HEADRACE_GCS_ANONYMOUS asks for"):
        store_of(server, HEADRACE_GCS_ANONYMOUS="1").list()


def test_without_credentials_a_public_bucket_is_read_and_the_log_says_so(
    server: ScriptedGcs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert store_of(server).list().objects
    assert server.tokens == [""]
    assert "read without credentials" in caplog.text


def test_without_credentials_a_closed_bucket_asks_for_some(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(401, "required", "Anonymous caller does not have access")
    with pytest.raises(NoCredentials, match="gcloud auth application-default login"):
        store_of(server).list()


def test_credentials_that_are_refused_are_never_followed_by_an_anonymous_try(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: error(403, "forbidden", SA) if "authorization" in asked.headers else None
    with pytest.raises(AccessDenied):
        with_token(server).list()
    assert server.tokens == [f"Bearer {TOKEN}"]


def test_the_project_that_pays_is_named_only_where_it_was_asked_for(server: ScriptedGcs) -> None:
    store_of(server, HEADRACE_GCS_USER_PROJECT="payer").list()
    store_of(server, GOOGLE_CLOUD_PROJECT="other").list()
    assert [asked.headers.get("x-goog-user-project") for asked in server.log] == ["payer", None]


def test_who_may_not_look_around_a_prefix_is_told_that_nothing_is_there(server: ScriptedGcs) -> None:
    def only_below(asked: Asked) -> Answer | None:
        return None if asked.query.get("prefix", "").startswith("m/none/") else error(403, "forbidden")

    server.refuse = only_below
    store = GcsStore(parse_source("gs://bucket/m/none"), store_of(server).settings)
    with pytest.raises(NotFound, match=r"Nothing lies under this prefix\. Correct"):
        store.list()


def test_tls_that_is_asked_in_plain_http_is_told(server: ScriptedGcs) -> None:
    server.refuse = lambda asked: Answer(400, b"Client sent an HTTP request to an HTTPS server.\n")
    with pytest.raises(BadEndpoint, match="speaks TLS"):
        store_of(server).list()
