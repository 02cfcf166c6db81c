"""What a model's name means."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.uri import BadSource, ModelSource, parse_source
from tests.profiles import examples

SEEDED = settings(max_examples=examples(150))
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9.-]{2,20}", fullmatch=True)
PREFIXES = (
    st.text(st.characters(codec="utf-8"), max_size=20)
    .map(lambda text: text.strip("/"))
    .filter(lambda text: {".", ".."}.isdisjoint(text.split("/")))
)


@SEEDED
@given(BUCKETS, PREFIXES, st.sampled_from(["s3", "S3"]), st.sampled_from(["", "/", "//"]))
def test_any_bucket_and_prefix_are_read_back(bucket: str, prefix: str, scheme: str, tail: str) -> None:
    source = parse_source(f"{scheme}://{bucket}/{prefix}{tail}")
    assert (source.scheme, source.bucket, source.prefix) == ("s3", bucket, prefix)
    assert parse_source(source.uri) == ModelSource("s3", bucket, prefix, source.uri)


@SEEDED
@given(st.text(max_size=30) | st.text(max_size=30).map(lambda text: "s3://" + text))
def test_any_text_is_a_source_or_refused_and_nothing_else(text: str) -> None:
    try:
        source = parse_source(text)
    except BadSource as error:
        str(error).encode()
        return
    assert source.scheme == "s3" or Path(source.prefix).is_dir()


@SEEDED
@given(
    st.sampled_from(["gs", "az", "abfs", "hf", "http", "https", "ftp", "minio", "s3a"]), st.text(max_size=20)
)
def test_a_uri_of_another_scheme_never_becomes_a_folder_or_a_hub_name(scheme: str, rest: str) -> None:
    with pytest.raises(BadSource) as caught:
        parse_source(f"{scheme}://{rest}")
    assert f"{scheme}://" in str(caught.value)
    assert "s3://" in caught.value.remedy


def test_a_scheme_that_is_planned_says_not_yet() -> None:
    with pytest.raises(BadSource, match=r"gs:// \(Google Cloud Storage\) is not supported yet"):
        parse_source("gs://bucket/model")


@pytest.mark.parametrize("text", ["s3://bucket", "s3://bucket/", "s3://bucket//"])
def test_a_bucket_alone_is_its_root(text: str) -> None:
    source = parse_source(text)
    assert (source.prefix, source.uri) == ("", "s3://bucket")


def test_the_name_of_an_object_is_built_from_the_canonical_uri() -> None:
    assert parse_source("S3://bucket/a//b/").uri_of("x") == "s3://bucket/a//b/x"


@pytest.mark.parametrize("text", ["s3://", "s3:///model"])
def test_a_uri_without_a_bucket_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="names no bucket"):
        parse_source(text)


@pytest.mark.parametrize(
    "text", ["s3://my bucket/x", "s3://b?x", "s3://b#/x", "s3://b%20/x", "s3://bück/x", "s3://-b"]
)
def test_a_bucket_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="characters that no bucket's name has"):
        parse_source(text)


@pytest.mark.parametrize("prefix", ["..", ".", "a/../b", "a/./b", "../a", "a/.."])
def test_a_prefix_with_dots_for_a_segment_is_refused(prefix: str) -> None:
    with pytest.raises(BadSource, match="between slashes"):
        parse_source(f"s3://bucket/{prefix}")


@pytest.mark.parametrize("prefix", ["...", "a/..b", ".a", "a..b/c."])
def test_dots_within_a_segment_are_part_of_the_key(prefix: str) -> None:
    assert parse_source(f"s3://bucket/{prefix}").prefix == prefix


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(BadSource, match="may not hold credentials") as caught:
        parse_source("s3://AKID:hush-hush@bucket/model")
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_name_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="is empty"):
        parse_source(text)


def test_a_folder_is_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    for text in ("a folder", "./a folder", str(folder), f"file://{folder}", f"file://localhost{folder}"):
        source = parse_source(text)
        assert (source.scheme, source.uri, source.text) == ("file", str(folder), text)


def test_a_file_uri_is_percent_decoded(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert parse_source(f"file://{tmp_path}/a%20b").prefix == str(tmp_path / "a b")


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("~/models").prefix == str(tmp_path / "models")


def test_a_folder_of_another_host_is_refused() -> None:
    with pytest.raises(BadSource, match="names another host"):
        parse_source("file://elsewhere/models")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadSource, match="is a file"):
        parse_source(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("text", ["~no-such-user-here/models", "x" * 5_000, "a\0b"])
def test_a_path_that_cannot_be_looked_at_is_refused(text: str) -> None:
    with pytest.raises(BadSource):
        parse_source(text)


def test_a_hub_name_is_told_that_hubs_are_not_supported_yet() -> None:
    with pytest.raises(BadSource, match="hub are not supported yet"):
        parse_source("Qwen/Qwen2.5-0.5B-Instruct")
