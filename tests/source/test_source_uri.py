"""What a model's name means."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.hf_uri import plain_hub_name
from headrace.source.object_uri import parse_object
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
    assert source.scheme == "s3" or plain_hub_name(text) or Path(source.prefix).is_dir()


@SEEDED
@given(st.sampled_from(["ftp", "minio", "s3a"]), st.text(max_size=20))
def test_a_uri_of_another_scheme_never_becomes_a_folder_or_a_hub_name(scheme: str, rest: str) -> None:
    with pytest.raises(BadSource) as caught:
        parse_source(f"{scheme}://{rest}")
    assert f"{scheme}://" in str(caught.value)
    assert "s3://" in caught.value.remedy


@SEEDED
@given(st.sampled_from(["s3", "gs", "az", "hf"]), st.text(max_size=20))
def test_a_uri_stays_with_its_scheme_or_is_refused(scheme: str, rest: str) -> None:
    try:
        source = parse_source(f"{scheme}://{rest}")
    except BadSource as error:
        str(error).encode()
        return
    assert source.scheme == scheme


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


# ---- web servers


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("https://host/models/qwen/", "https://host/models/qwen"),
        ("HTTPS://Host.Example:443/a", "https://host.example/a"),
        ("http://h:80", "http://h"),
        ("http://h:8080/", "http://h:8080"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("https://h/a b/ü", "https://h/a%20b/%C3%BC"),
        ("https://h/a%20b%2Fc", "https://h/a%20b%2Fc"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x"),
    ],
)
def test_a_folder_on_a_web_server_has_one_canonical_name(text: str, uri: str) -> None:
    source = parse_source(text)
    assert source.uri == uri
    assert parse_source(uri).uri == uri
    assert source.is_web


def test_the_name_of_an_object_on_a_web_server_is_percent_encoded() -> None:
    assert parse_source("https://h/m").uri_of("a b#1.safetensors") == "https://h/m/a%20b%231.safetensors"


@SEEDED
@given(st.sampled_from(["http", "https", "HTTPS"]), st.text(max_size=20))
def test_any_web_address_is_a_source_or_refused_and_stays_one(scheme: str, rest: str) -> None:
    try:
        source = parse_source(f"{scheme}://{rest}")
    except BadSource as error:
        str(error).encode()
        return
    assert source.scheme == scheme.lower()
    assert source.uri.isascii() and source.uri.isprintable() and " " not in source.uri
    assert parse_source(source.uri).uri == source.uri


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://user:hush@h/m", "user name or password"),
        ("https://hush@h/m", "user name or password"),
        ("https:///m?hush", "names no host"),
        ("https://h:port/m?hush", "host or port"),
        ("https://h:0/hush", "host or port"),
        ("https://a b/hush", "host or port"),
        ("https://h/a/../hush", "between slashes"),
        ("https://h/a/%2e%2E/hush", "between slashes"),
        ("https://h/m#hush", "fragment"),
        ("https://h/m\r\nX-Hush: 1", "control character"),
        ("https://[::1/hush", "host or port"),
    ],
)
def test_a_web_address_that_can_be_misread_is_refused_and_not_repeated(text: str, why: str) -> None:
    for parse in (parse_source, parse_object):
        with pytest.raises(BadSource, match=why) as caught:
            parse(text)
        assert "hush" not in str(caught.value)


def test_a_folder_takes_no_query_and_the_error_does_not_show_it() -> None:
    with pytest.raises(BadSource, match="one object only") as caught:
        parse_source("https://h/m/?X-Amz-Signature=hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("s3:/bucket/qwen", "s3://bucket/qwen"),
        ("S3:bucket/qwen", "s3://bucket/qwen"),
        ("gs//bucket", "gs://bucket"),
        (" s3://bucket/qwen", "s3://bucket/qwen"),
        ("\thttps://host/qwen", "https://host/qwen"),
        ("file:/models/qwen", "file:///models/qwen"),
        ("az:/container/x", "az://container/x"),
    ],
)
def test_a_misspelt_uri_is_told_as_one(text: str, meant: str) -> None:
    with pytest.raises(BadSource, match="is neither a folder nor a URI") as caught:
        parse_source(text)
    assert caught.value.remedy == f"Write {meant}."


def test_a_secret_in_a_misspelt_uri_is_not_repeated() -> None:
    for text in ("s3:/key:SECRET@bucket/x", "https:/host/x?sig=SECRET"):
        with pytest.raises(BadSource) as caught:
            parse_source(text)
        assert "SECRET" not in str(caught.value)


def test_a_folder_may_be_called_like_a_misspelt_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    assert parse_source("s3:/bucket").prefix == str(tmp_path / "s3:" / "bucket")


def test_an_errors_sentence_ends_once() -> None:
    with pytest.raises(BadSource) as caught:
        parse_source("~nobody-of-this-name/x")
    assert ".." not in caught.value.message
