"""What the name of one object means."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.object_uri import parse_object
from headrace.source.uri import BadSource, parse_source
from tests.profiles import examples

SEEDED = settings(max_examples=examples(150))


@pytest.mark.parametrize(
    ("text", "folder", "name"),
    [
        ("s3://b/p/q/x.safetensors", "s3://b/p/q", "x.safetensors"),
        ("S3://b/x.safetensors", "s3://b", "x.safetensors"),
        ("https://h/p/x.safetensors", "https://h/p", "x.safetensors"),
        ("http://h:9/x%20y.safetensors", "http://h:9", "x y.safetensors"),
    ],
)
def test_an_object_is_a_folder_and_a_name_in_it(text: str, folder: str, name: str) -> None:
    source, found = parse_object(text)
    assert (source.uri, found) == (folder, name)
    assert parse_source(source.uri) == parse_source(source.text)


def test_the_query_of_an_object_is_kept_and_never_shown() -> None:
    source, name = parse_object("https://h/p/x.safetensors?X-Amz-Signature=hush%2Fhush&a=b c")
    assert source.query == "X-Amz-Signature=hush%2Fhush&a=b%20c"
    assert name == "x.safetensors"
    assert "hush" not in f"{source!r} {source.uri} {source.uri_of(name)} {source.text}"


def test_a_local_file_is_found_by_path_and_by_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    file = tmp_path / "a b" / "x.safetensors"
    file.touch()
    monkeypatch.chdir(tmp_path / "a b")
    for text in (str(file), "x.safetensors", "./x.safetensors", f"file://{tmp_path}/a%20b/x.safetensors"):
        source, name = parse_object(text)
        assert (source.scheme, source.prefix, name) == ("file", str(tmp_path / "a b"), "x.safetensors")


def test_a_linked_file_keeps_the_links_name(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert parse_object(str(tmp_path / "model.safetensors"))[1] == "model.safetensors"


@pytest.mark.parametrize("text", ["s3://b", "s3://b/", "s3://b/p/", "https://h", "https://h/p/"])
def test_a_folder_is_no_object(text: str) -> None:
    with pytest.raises(BadSource, match="names no object"):
        parse_object(text)


@pytest.mark.parametrize("text", ["s3://b//x", "s3://b/p//x", "https://h//x", "https://h/p//x"])
def test_an_empty_name_before_the_object_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="empty name"):
        parse_object(text)


@pytest.mark.parametrize("name", ["a%2Fb", "a%00b", "%FF", "%0a"])
def test_an_object_on_a_web_server_has_a_name_that_a_file_can_have(name: str) -> None:
    with pytest.raises(BadSource, match="no file can have"):
        parse_object(f"https://h/p/{name}")


def test_a_local_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="is a folder"):
        parse_object(str(tmp_path))
    for missing in (str(tmp_path / "gone"), "a\0b", "", "~no-such-user-here/x"):
        with pytest.raises(BadSource):
            parse_object(missing)


@SEEDED
@given(st.text(max_size=30) | st.text(max_size=30).map(lambda text: "https://" + text))
def test_any_text_is_an_object_or_refused_and_nothing_else(text: str) -> None:
    try:
        source, name = parse_object(text)
    except BadSource as error:
        str(error).encode()
        return
    assert name
    assert source.scheme != "file" or (Path(source.prefix) / name).is_file()


def test_a_link_that_leads_nowhere_or_in_a_circle_is_called_that(tmp_path: Path) -> None:
    for name, target in (("gone", "nothing"), ("circle", "circle")):
        (tmp_path / name).symlink_to(tmp_path / target)
        with pytest.raises(BadSource, match=f"{name} is a link that leads to no file"):
            parse_object(str(tmp_path / name))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadSource, match="pipe is no file, but a pipe"):
        parse_object(str(tmp_path / "pipe"))
