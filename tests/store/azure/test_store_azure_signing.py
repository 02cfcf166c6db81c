"""Signatures by an account's key: ours beside those of Microsoft's own library."""

from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.pipeline.transport import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.azure.connection_string import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from headrace.store.azure.principal import shared_key
from headrace.store.azure.request import BlobRequest, string_to_sign

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


def of_the_vendor(request: BlobRequest) -> str:
    """The Authorization that azure-storage-blob gives the same request."""
    headers = {name: value for name, value in request.headers.items() if name != "Authorization"}
    theirs = HttpRequest(request.method, f"https://host{request.target}", headers=headers)
    if request.content_length:
        theirs.headers["Content-Length"] = str(request.content_length)
    context: Any = PipelineContext(transport=SimpleNamespace())
    policy = SharedKeyCredentialPolicy(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
    policy.on_request(PipelineRequest(theirs, context))
    return str(theirs.headers["Authorization"])


def of_ours(request: BlobRequest) -> str:
    shared_key("TEST", DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY).authorize(request)
    return request.headers["Authorization"]


@pytest.mark.parametrize(
    "request_",
    [
        BlobRequest(
            "GET", "/c", {"restype": "container", "comp": "list", "prefix": "a b/ü&=", "delimiter": "/"}
        ),
        BlobRequest(
            "GET", "/devstoreaccount1/c/a%20b%2B%C3%BC", {}, {"x-ms-range": "bytes=0-9", "If-Match": '"0x1"'}
        ),
        BlobRequest("HEAD", "/c/key", {}, {"x-ms-version": "2021-12-02"}),
        BlobRequest("PUT", "/c", {"restype": "container"}),
        BlobRequest(
            "PUT",
            "/c/k",
            {},
            {
                "x-ms-version": "2021-12-02",
                "x-ms-blob-type": "BlockBlob",
                "x-ms-meta-headrace_sha256": "ab" * 32,
                "x-ms-meta-headrace_crc64nvme": "AAAAAAAAAAA=",
                "Content-Type": "application/octet-stream",
                "Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg==",
            },
            17,
        ),
        BlobRequest("PUT", "/c/k", {"comp": "block", "blockid": "YWJjZA=="}, {"Content-MD5": "x=="}, 1 << 24),
        BlobRequest("PUT", "/c/k", {"comp": "blocklist"}, {"x-ms-blob-content-type": "a/b"}, 99),
    ],
    ids=lambda request: f"{request.method} {request.target[:30]}",
)
def test_every_kind_of_request_is_signed_as_the_vendors_library_signs_it(request_: BlobRequest) -> None:
    ours = of_ours(request_)
    assert ours == of_the_vendor(request_)


@given(
    st.dictionaries(st.sampled_from(["prefix", "marker", "comp", "delimiter"]), st.text(min_size=1)),
    st.text(alphabet="abc%20-._~/", max_size=30),
    st.integers(0, 1 << 40),
)
def test_any_query_and_path_are_signed_as_the_vendors_library_signs_them(
    query: dict[str, str], path: str, length: int
) -> None:
    query = {name: value.encode("utf-8", "replace").decode() for name, value in query.items()}
    request = BlobRequest("GET", f"/c/{path}", query, {"x-ms-version": "2021-12-02"}, length)
    ours = of_ours(request)
    assert ours == of_the_vendor(request)


def test_a_range_in_the_usual_header_is_signed_too() -> None:
    request = BlobRequest("GET", "/c/k", {}, {"x-ms-date": DATE, "Range": "bytes=0-1"})
    assert string_to_sign(request, "acct").split("\n") == [
        "GET", "", "", "", "", "", "", "", "", "", "", "bytes=0-1", f"x-ms-date:{DATE}", "/acct/c/k",
    ]  # fmt: skip


def test_the_key_is_never_shown() -> None:
    principal = shared_key("TEST", DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
    assert DEVELOPMENT_KEY not in f"{principal!r}{principal.shown}{principal.remedy}"
    assert principal.key.hex() not in repr(principal) and repr(principal.key) not in repr(principal)
