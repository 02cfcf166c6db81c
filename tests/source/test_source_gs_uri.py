"""What gs:// URIs mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.object_uri import parse_object
from headrace.source.uri import BadSource, ModelSource, parse_source
from tests.profiles import examples

SEEDED = settings(max_examples=examples(150))


@SEEDED
@given(st.text(max_size=30))
def test_any_text_is_read_back_or_refused(rest: str) -> None:
    try:
        source = parse_source(f"gs://{rest}")
    except BadSource as error:
        str(error).encode()
        return
    assert parse_source(source.uri) == ModelSource("gs", source.bucket, source.prefix, source.uri)


@pytest.mark.parametrize("text", ["gs://bucket_1", "GS://bucket_1/", "gs://bucket_1//"])
def test_a_bucket_alone_is_its_root(text: str) -> None:
    source = parse_source(text)
    assert (source.scheme, source.prefix, source.uri) == ("gs", "", "gs://bucket_1")


def test_slashes_inside_a_prefix_count_and_those_at_its_ends_do_not() -> None:
    assert parse_source("gs://bucket//a//b/").uri == "gs://bucket/a//b"


def test_an_object_is_a_folder_and_a_name() -> None:
    source, name = parse_object("gs://bucket/a/b/model.safetensors")
    assert (source.uri, name) == ("gs://bucket/a/b", "model.safetensors")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gs://", "names no bucket"),
        ("gs:///model", "names no bucket"),
        ("gs://Bucket/x", "characters that no bucket's name has"),
        ("gs://b?x", "characters that no bucket's name has"),
        ("gs://-b", "characters that no bucket's name has"),
        ("gs://b/a/../c", r"\. or \.\. between slashes"),
        ("gs://b/a\nb", "line break"),
        ("gs://b/" + "a" * 1025, "too long"),
    ],
)
def test_what_no_bucket_or_object_is_called_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadSource, match=said) as caught:
        parse_source(text)
    assert "gs://" in str(caught.value) or "prefix" in caught.value.remedy


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(BadSource, match="may not hold credentials") as caught:
        parse_source("gs://user:word@bucket/x")
    assert "word" not in str(caught.value)


def test_an_object_needs_a_name() -> None:
    with pytest.raises(BadSource, match="names no object"):
        parse_object("gs://bucket/folder/")
