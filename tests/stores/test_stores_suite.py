"""The same model in every store, by the same commands: push, check, inspect, ls, pull, stream, serve."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import headrace
from headrace.cli.main import main
from tests.e2e.serving import serving
from tests.stores.place import Pushed

pytestmark = pytest.mark.timeout(180)


def told(pushed: Pushed, line: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command says as JSON. AssertionError if it does not succeed."""
    with pushed.place.entered():
        code = main([*line, "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err + said.out
    return json.loads(said.out)


def test_a_check_finds_nothing_wrong_and_tells_the_settings(
    pushed: Pushed, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = told(pushed, ["check", pushed.uri, "--device", "cpu"], capsys)
    checks = {check["check"]: check for check in facts["checks"]}
    assert [name for name, check in checks.items() if check["status"] == "fail"] == []
    assert {
        "settings",
        "list",
        "read",
        "weights",
        "headers",
        "architecture",
        "memory",
        "speed",
    } <= checks.keys()
    settings = {setting["name"] for setting in checks["settings"]["settings"]}
    assert settings >= set(pushed.place.describes)
    weights = sorted(path.name for path in pushed.folder.glob("*.safetensors"))
    assert checks["weights"]["objects"] == weights


def test_an_inspection_tells_every_tensor(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(pushed, ["inspect", pushed.uri], capsys)
    expected = {}
    for path in pushed.folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            expected |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert {tensor["name"]: tensor["shape"] for tensor in facts["tensors"]} == expected
    one = told(pushed, ["inspect", pushed.uri, "--tensor", "model.norm.weight"], capsys)
    assert one["min"] < one["mean"] < one["max"]


def test_the_model_is_listed_below_its_place(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    if not pushed.place.lists:
        with pushed.place.entered():
            assert main(["ls", pushed.place.uri]) == 1
        assert "no listing" in capsys.readouterr().err
        return
    facts = told(pushed, ["ls", pushed.place.uri], capsys)
    (model,) = [model for model in facts["models"] if model["uri"] == pushed.uri]
    own = {
        path.name: path.stat().st_size for path in pushed.folder.iterdir() if not path.name.startswith(".")
    }
    extra = {"headrace.manifest.json"} if pushed.place.put is None else set()
    assert model["format"] == "safetensors"
    assert model["files"] == len(own | dict.fromkeys(extra, 0))
    assert model["size_bytes"] >= sum(own.values())


def test_a_pull_brings_the_files_and_a_second_one_nothing(
    pushed: Pushed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = told(pushed, ["pull", pushed.uri, str(tmp_path)], capsys)
    for name in first["fetched"]:
        if (pushed.folder / name).exists():
            assert (tmp_path / name).read_bytes() == (pushed.folder / name).read_bytes(), name
    assert {path.name for path in pushed.folder.glob("*.safetensors")} <= set(first["fetched"])
    if pushed.place.put is None:  # it has a manifest
        assert set(first["verified"]) >= {path.name for path in pushed.folder.glob("*.safetensors")}
    second = told(pushed, ["pull", pushed.uri, str(tmp_path)], capsys)
    assert second["fetched"] == []
    assert sorted(second["current"]) == sorted(first["fetched"])


def test_the_bytes_that_stream_are_those_of_the_files(pushed: Pushed) -> None:
    with pushed.place.entered():
        tensors = headrace.load_file(pushed.uri)
    seen = 0
    for path in sorted(pushed.folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                assert tensors[name].equal(file.get_tensor(name)), name
                seen += 1
    assert seen == len(tensors) > 10


def test_the_model_is_served(pushed: Pushed) -> None:
    flags = ["--device", "cpu", "--max-total-tokens", "1024"]
    with serving("--model-path", pushed.uri, *flags, environ=pushed.place.variables) as server:
        assert server.complete("The capital of France is", max_tokens=4)
