"""What names a model on the Hugging Face hub, and what stays a folder."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.object_uri import parse_object
from headrace.source.uri import BadSource, at_revision, parse_source
from tests.profiles import examples

SEEDED = settings(max_examples=examples(150))
WORDS = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9._]{0,8}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda word: ".." not in word and not word.endswith(".git")
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "repository", "revision", "path"),
    [
        ("hf://Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "", ""),
        ("HF://models/Qwen/Qwen2.5-0.5B/", "Qwen/Qwen2.5-0.5B", "", ""),
        ("hf://org/name@v1.0", "org/name", "v1.0", ""),
        ("hf://org/name@v1/sub/folder/", "org/name", "v1", "sub/folder"),
        ("hf://org/name/sub", "org/name", "", "sub"),
        ("hf://org/name@refs/pr/7/sub", "org/name", "refs/pr/7", "sub"),
        ("hf://org/name@refs/pr/7", "org/name", "refs/pr/7", ""),
        ("hf://org/name@refs%2Fpr%2F7/sub", "org/name", "refs/pr/7", "sub"),
        ("hf://org/name@feature%2Fx/sub", "org/name", "feature/x", "sub"),
        ("hf://org/name/a@b", "org/name", "", "a@b"),
    ],
)
def test_a_uri_names_repository_revision_and_folder(
    text: str, repository: str, revision: str, path: str
) -> None:
    source = parse_source(text)
    assert (source.scheme, source.bucket, source.revision, source.prefix) == (
        "hf",
        repository,
        revision,
        path,
    )


@SEEDED
@given(
    WORDS, WORDS, st.sampled_from(["", "main", "v1.0", "refs/pr/3", "a/b"]), st.sampled_from(["", "x", "x/y"])
)
def test_the_canonical_name_is_read_back(org: str, name: str, revision: str, path: str) -> None:
    at = f"@{revision.replace('/', '%2F')}" if revision else ""
    source = parse_source(f"hf://{org}/{name}{at}/{path}")
    again = parse_source(source.uri)
    assert (again.bucket, again.revision, again.prefix) == (f"{org}/{name}", revision, path)


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf://name",
        "hf://org/",
        "hf:///name",
        "hf://o rg/name",
        "hf://org/-x",
        "hf://org/a--b",
        "hf://a..b/c",
        "hf://org/name.git",
        "hf://org/" + "n" * 97,
    ],
)
def test_what_can_be_no_repository_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="by its owner and name"):
        parse_source(text)


def test_a_token_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadSource, match="goes into HF_TOKEN") as caught:
        parse_source("hf://user:hush@org/name")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("kind", ["datasets", "spaces"])
def test_the_hubs_other_kinds_are_told_apart(kind: str) -> None:
    with pytest.raises(BadSource, match=f"one of the hub's {kind}, not a model"):
        parse_source(f"hf://{kind}/org/name")


@pytest.mark.parametrize("revision", ["", "..", "a..b", "a%20b", "a%0D%0Ab", "%2Fa", "a%2F", "ü", "x" * 300])
def test_a_revision_that_can_be_none_is_refused(revision: str) -> None:
    with pytest.raises(BadSource, match="a revision that can be none"):
        parse_source(f"hf://org/name@{revision}")


@pytest.mark.parametrize("path", ["a//b", "../x", "a/./b", "a\nb"])
def test_a_path_that_no_repository_has_is_refused(path: str) -> None:
    with pytest.raises(BadSource, match="holds a path that no file"):
        parse_source(f"hf://org/name/{path}")


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-0.5B-Instruct", "org/name@v1"])
def test_a_plain_name_that_is_nothing_here_is_the_hubs(here: Path, text: str) -> None:
    source = parse_source(text)
    assert source.scheme == "hf"
    assert source.uri == f"hf://{text}"
    assert source.text == text


def test_a_folder_of_that_name_goes_first(here: Path) -> None:
    (here / "org" / "name").mkdir(parents=True)
    assert parse_source("org/name").uri == str(here / "org" / "name")


def test_a_link_of_that_name_that_leads_nowhere_does_not_become_the_hubs(here: Path) -> None:
    (here / "org").mkdir()
    (here / "org" / "name").symlink_to("gone")
    with pytest.raises(BadSource, match="There is no folder org/name"):
        parse_source("org/name")


@pytest.mark.parametrize(
    "text",
    [
        "./org/name",
        "../org/name",
        "/org/name",
        "~/org/name",
        "org/name/",
        "name",
        "a/b/c",
        "org/name.git",
        ".org/name",
        "org\\name",
        "org/na me",
    ],
)
def test_what_is_written_as_a_path_is_always_a_folder(
    here: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here))
    with pytest.raises(BadSource, match="There is no folder"):
        parse_source(text)


def test_an_object_is_a_name_in_a_folder_of_the_repository() -> None:
    source, name = parse_object("hf://org/name@v1/sub/model.safetensors")
    assert (source.uri, name) == ("hf://org/name@v1/sub", "model.safetensors")
    assert source.uri_of(name) == "hf://org/name@v1/sub/model.safetensors"


def test_a_repository_is_no_object() -> None:
    with pytest.raises(BadSource, match="names no object"):
        parse_object("hf://org/name")


@pytest.mark.parametrize(
    ("page", "uri"),
    [
        ("https://huggingface.co/org/name", "hf://org/name"),
        ("https://HF.co/org/name/?x=1", "hf://org/name"),
        ("https://huggingface.co/org/name/tree/v1", "hf://org/name@v1"),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F1/sub", "hf://org/name@refs/pr/1/sub"),
    ],
)
def test_a_page_of_the_hub_is_told_apart_from_a_folder_of_files(page: str, uri: str) -> None:
    with pytest.raises(BadSource, match="is a page about a model") as caught:
        parse_source(page)
    assert caught.value.remedy == f"Write {uri}."
    assert parse_source(uri).uri == uri


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/org/name/resolve/main",
        "https://example.org/org/name",
        "https://huggingface.co/x",
    ],
)
def test_other_addresses_stay_a_web_servers(text: str) -> None:
    assert parse_source(text).uri == text


@pytest.mark.parametrize(
    ("name", "revision", "same"),
    [
        ("org/name", "v1.0", "org/name@v1.0"),
        ("org/name", "feature/x", "org/name@feature%2Fx"),
        ("org/name", "refs/pr/7", "org/name@refs%2Fpr%2F7"),
        ("HF://org/name/", "v1.0", "hf://org/name@v1.0"),
        ("hf://org/name/sub/folder", "feature/x", "hf://org/name@feature%2Fx/sub/folder"),
        ("hf://org/name@v1.0", "v1.0", "hf://org/name@v1.0"),
        ("org/name@v1.0", "v1.0", "org/name@v1.0"),
    ],
)
def test_a_revision_beside_the_name_is_one_in_it(
    name: str, revision: str, same: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert at_revision(name, revision) == same
    assert parse_source(same).revision == revision


@pytest.mark.parametrize(
    ("name", "revision", "why"),
    [
        ("org/name@main", "v1.0", "names the revision main, and v1.0 is asked for"),
        ("org/name", "a..b", "names a revision that can be none"),
        ("org/name", "--flag", "names a revision that can be none"),
        (
            "s3://bucket/name",
            "v1.0",
            "is no model on the Hugging Face hub.*prefix or the folder of the version",
        ),
        ("https://host/name", "v1.0", "is no model on the Hugging Face hub"),
        ("./folder", "v1.0", "is no model on the Hugging Face hub"),
        ("here/folder", "v1.0", "is no model on the Hugging Face hub.*write hf://here/folder"),
    ],
)
def test_a_revision_that_cannot_be_had_is_refused(
    name: str, revision: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "folder").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSource, match=why):
        at_revision(name, revision)
