"""Many keys, deep keys and strange ones: what is pushed comes back by a pull, name for name and byte for byte."""

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.base import list_below, open_store
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.stores.place import Place

pytestmark = pytest.mark.timeout(180)

NAMES = [
    "plain.txt", "with space.txt", "plus+plus.txt", "percent%.txt", "percent%2B%20.txt", "ünï/日本語 😀.txt",
    "a#b?c&d=e;f.txt", "quote'\"<>.txt", "~!$()*,;:@.txt", "a..dots..txt", "=/=.txt", "UPPER/lower.TXT",
    "/".join("deep" for _ in range(60)) + "/x.txt",
    "/".join([f"{level}" + "l" * 150 for level in range(5)]) + "/long.txt",
]  # fmt: skip


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "files"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_strange_and_deep_keys_come_back_as_they_went(
    place: Place, odd_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not place.lists:  # what a plain web server has is found by its name only, never by a listing
        with place.entered():
            assert main(["ls", place.uri]) == 1
        return
    uri = f"{place.uri}/odd + names %41"
    with place.entered():
        if place.put is not None:
            place.put(odd_folder, uri)
        else:
            assert main(["push", str(odd_folder), uri, "--force", "--quiet"]) == 0
        assert sorted(item.name for item in list_below(open_store(parse_source(uri)))) == sorted(NAMES)
        assert main(["pull", uri, str(tmp_path), "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["fetched"]) == sorted(NAMES)
    assert [(tmp_path / name).read_text() for name in NAMES] == NAMES


def test_thousands_of_keys_under_one_prefix_are_listed_whole(
    seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"many-{secrets.token_hex(4)}"
    client = make_s3_client(resolve_s3_settings(), attempts=3, connections=8)
    client.create_bucket(Bucket=bucket)
    keys = [f"m/{number:05d}.txt" for number in range(2_500)] + ["m/config.json", "m/model.safetensors"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"{}"), keys))
    store = open_store(parse_source(f"s3://{bucket}/m"))
    names = sorted(key.removeprefix("m/") for key in keys)
    assert [item.name for item in store.list().objects] == names
    assert sorted(item.name for item in list_below(store)) == names
    assert main(["ls", f"s3://{bucket}", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["name"], model["files"], model["format"]) == ("m", len(keys), "safetensors")
