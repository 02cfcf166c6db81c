"""Whatever comes from users and servers of az://: understood, or the one error that says it is not."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from headrace.source.object_uri import parse_object
from headrace.source.uri import BadSource, parse_source
from headrace.store.azure.connection_string import parse_connection_string
from headrace.store.azure.endpoint import find_blob_endpoint
from headrace.store.azure.errors import error_of_azure_response
from headrace.store.azure.listing import NotABlobListing, parse_blob_page
from headrace.store.azure.principal import shared_access_signature, shared_key
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.errors import BadEndpoint, NoCredentials, StoreError
from headrace.store.http.connection import Head
from tests.store.scripted_azure import Stored, blob_entry, page_of

KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
# Pieces of what is meant, so that not all of it is refused at once.
PIECES = st.sampled_from(
    [
        "az://",
        "/",
        "@",
        ":",
        "c",
        "acct",
        ".blob.",
        ".dfs.",
        "core.windows.net",
        "?sig=",
        "..",
        "%2F",
        "=",
        ";",
        "https://",
        "AccountName",
        "BlobEndpoint",
        "[",
        "::1",
        "]",
        "10000",
        "&",
        "sig",
        "se=",
        "ü",
        ".",
    ]
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=10).map("".join))
SETTINGS = resolve_azure_settings(
    parse_source("az://c"),
    {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_SAS_TOKEN": "sp=r&sig=SECRET"},
)


@given(TEXTS)
def test_any_uri_is_a_source_or_a_bad_source(text: str) -> None:
    for parse in (parse_source, parse_object):
        with contextlib.suppress(BadSource):
            parse(f"az://{text}")


@given(KEYS)
def test_any_key_is_found_again_in_the_canonical_name(key: str) -> None:
    try:
        source = parse_source(f"abfss://c@acct.dfs.core.windows.net/{key}")
    except BadSource:
        return
    again = parse_source(source.uri)
    assert (again.host, again.bucket, again.prefix) == (source.host, source.bucket, source.prefix)
    assert source.prefix == key.strip("/")


@given(TEXTS)
def test_any_setting_is_used_or_refused(text: str) -> None:
    with contextlib.suppress(BadEndpoint):
        find_blob_endpoint("", parse_connection_string(text), {}, "az://c")
    for environ in ({"AZURE_STORAGE_ENDPOINT": text}, {"AZURE_STORAGE_ACCOUNT_NAME": text}):
        with contextlib.suppress(BadEndpoint):
            endpoint = find_blob_endpoint("", None, environ, "az://c")
            assert endpoint.url.startswith("http")
    with contextlib.suppress(NoCredentials):
        shared_key("X", "acct", text)
    with contextlib.suppress(NoCredentials):
        signature = shared_access_signature("X", text)
        assert " " not in signature.value and "\n" not in signature.value
        assert signature.value not in repr(signature)


@given(st.lists(KEYS, unique=True, max_size=5), st.data())
def test_a_listing_is_read_as_it_was_written(keys: list[str], data: st.DataObject) -> None:
    names = [key for key in keys if "/" not in key and key.isprintable()]
    body = page_of("".join(blob_entry(f"m/{name}", Stored(b"123")) for name in names))
    page = parse_blob_page(body, "m/")
    assert [item.name for item in page.objects] == names
    assert all(item.size_bytes == 3 for item in page.objects)
    # Damaged anywhere, it is still a listing or it is told to be none.
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    with contextlib.suppress(NotABlobListing):
        parse_blob_page(damaged, "m/")


@given(
    st.integers(300, 599),
    st.binary(max_size=80),
    st.dictionaries(
        st.sampled_from(["x-ms-error-code", "x-ms-request-id", "date", "retry-after"]),
        st.text(st.characters(max_codepoint=255), max_size=30),
    ),
)
def test_any_refusal_is_a_typed_error(status: int, body: bytes, headers: dict[str, str]) -> None:
    error = error_of_azure_response("az://c/k", Head(status, headers), body, SETTINGS)
    assert isinstance(error, StoreError)
    assert "SECRET" not in str(error)
    assert "\n" not in str(error)
