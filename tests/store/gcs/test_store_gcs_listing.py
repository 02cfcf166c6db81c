"""A page of Cloud Storage's listing: proved before it is used."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store.gcs.listing import NotAGcsListing, parse_gcs_page
from tests.profiles import examples

ITEM: dict[str, Any] = {
    "name": "m/config.json",
    "size": "12",
    "generation": "17",
    "updated": "2026-01-02T03:04:05.6Z",
}


def page_of(*items: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"kind": "storage#objects", "items": items, **more}).encode()


def test_an_object_has_its_generation_for_a_version_and_its_checksum_is_kept_beside() -> None:
    page = parse_gcs_page(page_of({**ITEM, "crc32c": "AAAAAA=="}), "m/")
    (item,) = page.objects
    assert (item.key, item.name, item.size_bytes, item.version) == ("m/config.json", "config.json", 12, "17")
    assert item.modified_s == 1767323045
    assert page.crcs == {("m/config.json", "17"): "AAAAAA=="}


def test_folders_are_named_without_their_slash() -> None:
    page = parse_gcs_page(page_of(prefixes=["m/a/", "m/b c/"]), "m/")
    assert page.folders == ("a", "b c")


def test_a_page_without_entries_is_an_empty_one() -> None:
    page = parse_gcs_page(b'{"kind": "storage#objects"}', "m/")
    assert (page.objects, page.folders, page.next_token) == ((), (), "")


def test_what_stands_for_the_folder_itself_is_no_object() -> None:
    assert parse_gcs_page(page_of({**ITEM, "name": "m/", "size": "0"}), "m/").objects == ()


def test_a_server_that_does_not_know_delimiters_is_understood() -> None:
    page = parse_gcs_page(page_of({**ITEM, "name": "m/sub/x"}, ITEM), "m/")
    assert [item.name for item in page.objects] == ["config.json"]
    assert page.folders == ("sub",)


def test_a_deep_page_names_what_lies_in_folders_but_not_what_stands_for_them() -> None:
    page = parse_gcs_page(
        page_of({**ITEM, "name": "m/sub/x"}, {**ITEM, "name": "m/sub/", "size": "0"}), "m/", deep=True
    )
    assert [item.name for item in page.objects] == ["sub/x"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"size": "-1"}, "size"),
        ({"size": "1_0"}, "size"),
        ({"size": "٣"}, "size"),
        ({"size": 12}, "no list of objects"),
        ({"generation": "x"}, "generation"),
        ({"generation": ""}, "generation"),
        ({"name": "other/x"}, "not under the prefix"),
        ({"name": None}, "no list of objects"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotAGcsListing, match=said):
        parse_gcs_page(page_of({**ITEM, **changed}), "m/")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"kind": "storage#buckets"}', b"\xff"])
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(NotAGcsListing):
        parse_gcs_page(body, "m/")


def test_a_folder_outside_the_prefix_is_refused() -> None:
    with pytest.raises(NotAGcsListing, match="not under the prefix"):
        parse_gcs_page(page_of(prefixes=["elsewhere/"]), "m/")


@settings(max_examples=examples(200))
@given(
    st.binary(max_size=80)
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda one: st.lists(one) | st.dictionaries(st.sampled_from(["kind", "items", "name", "size"]), one),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_page_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        parse_gcs_page(body, "")
    except NotAGcsListing as error:
        str(error).encode()
