"""The manifest's format, and what makes one stale or broken."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.source.files import MANIFEST_NAME, choose_metadata
from headrace.source.manifest import (
    BLOCK_BYTES,
    BadManifest,
    ObjectSums,
    block_count,
    encode_manifest,
    parse_manifest,
    sums_of,
)
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.weight_files import choose_weights


def sums(size_bytes: int) -> ObjectSums:
    count = block_count(size_bytes, BLOCK_BYTES)
    return ObjectSums(size_bytes, BLOCK_BYTES, tuple((1 << 64) - 1 - number for number in range(count)))


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 20 * BLOCK_BYTES), max_size=4))
def test_a_manifest_is_read_as_it_was_written(sizes: dict[str, int]) -> None:
    objects = {name: sums(size) for name, size in sizes.items()}
    assert parse_manifest(encode_manifest(objects), "here") == objects


def test_it_is_metadata_and_no_weight() -> None:
    names = ("config.json", MANIFEST_NAME, "model.safetensors")
    listing = Listing(tuple(ObjectInfo(name, name, 10, "1") for name in names))
    assert MANIFEST_NAME in {item.name for item in choose_metadata(listing, "here").metadata}
    assert [item.name for item in choose_weights(listing, "here", None)] == ["model.safetensors"]


def changed(**fields: Any) -> bytes:
    """A manifest of one block with other fields."""
    return json.dumps(json.loads(encode_manifest({"a": sums(5)})) | fields).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "cannot be read"),
        (changed(format="another"), "is not a manifest of Headrace"),
        (changed(version=2), "is of version 2"),
        (changed(algorithm="sha256"), "of the kind sha256"),
        (changed(block_bytes=0), "block_bytes is 0"),
        (changed(objects={"a": {"size_bytes": 5, "sums": "00"}}), "a has 5 bytes and 2 digits"),
        (changed(objects={"a": {"size_bytes": -1, "sums": ""}}), "a has -1 bytes"),
        (changed(objects={"a": {"size_bytes": 5, "sums": "zz" * 8}}), "cannot be read"),
        (changed(objects={"a": {"size_bytes": 5}}), "cannot be read"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_remedy(data: bytes, said: str) -> None:
    with pytest.raises(BadManifest, match=said) as caught:
        parse_manifest(data, f"s3://b/m/{MANIFEST_NAME}")
    assert f"s3://b/m/{MANIFEST_NAME}" in caught.value.message
    assert "headrace push --manifest" in caught.value.remedy


def test_an_object_that_it_does_not_know_makes_it_stale() -> None:
    with pytest.raises(BadManifest, match=r"s3://b/m/headrace.manifest.json is stale: it does not know b"):
        sums_of({"a": sums(5)}, [("a", 5), ("b", 5)], "s3://b/m")


def test_another_size_makes_it_stale() -> None:
    with pytest.raises(BadManifest, match=r"stale: it says 5 bytes of a, the listing 6"):
        sums_of({"a": sums(5)}, [("a", 6)], "s3://b/m")


def test_objects_that_are_not_loaded_do_not_matter() -> None:
    assert sums_of({"a": sums(5), "old": sums(9)}, [("a", 5)], "s3://b/m") == [sums(5)]
