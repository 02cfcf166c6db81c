"""`headrace bench load`, as a user runs it: on a folder and on a bucket, beside peers and without them."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.cli.bench_load import PEERS_VARIABLE, peers_python
from headrace.cli.main import main
from headrace.cli.parser import UsageError
from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files

LOADER_FIELDS = {
    "gb_per_s",
    "cpu_s_per_gb",
    "user_s_per_gb",
    "system_s_per_gb",
    "peak_bytes",
    "over_bytes",
    "first_tensor_s",
    "requests",
    "facts",
}
TENSOR_BYTES = 5 * 200 * 1000 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards and their index, without anything else of a model."""
    folder = tmp_path_factory.mktemp("checkpoint")
    weights = {f"w{number}": np.full((200, 1000), number, np.float32) for number in range(5)}
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    shards = [dict(list(weights.items())[:2]), dict(list(weights.items())[2:])]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing installed."""
    folder = tmp_path_factory.mktemp("bare-python")
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python")


def bench(*args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace", "bench", "load", *args, "--runs", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )


def report_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_a_folder_is_measured_beside_a_peer_in_another_python(folder: Path) -> None:
    done = bench(
        str(folder),
        "--vs",
        "safetensors",
        "--json",
        "--peers-python",
        sys.executable,
        "--wire-connections",
        "2",
    )
    report = report_of(done)
    files = sorted(folder.glob("*.safetensors"))
    assert report["objects"] == 2
    assert report["bytes"] == sum(file.stat().st_size for file in files)
    assert report["runs"] == 1
    assert report["absent"] == {}
    assert set(report["loaders"]) == {"wire", "headrace", "safetensors"}
    for facts in report["loaders"].values():
        assert set(facts) == LOADER_FIELDS
        assert facts["gb_per_s"]["min"] > 0
    ours, theirs = report["measurements"]["headrace"][0], report["measurements"]["safetensors"][0]
    assert (ours["tensors"], ours["tensor_bytes"]) == (5, TENSOR_BYTES)
    assert ours["digest"] == theirs["digest"]
    assert 0 < ours["first_tensor_s"] <= ours["wall_s"]
    assert ours["requests"] >= 2
    for other in ("wire", "safetensors"):
        assert set(report["ratios"][other]) == {"gb_per_s", "cpu_s"}
    assert report["ratios"]["safetensors"]["gb_per_s"]["median"] == pytest.approx(
        theirs["wall_s"] / ours["wall_s"]
    )
    assert "torch" in report["versions"]["headrace"]
    assert "safetensors" in report["versions"]["safetensors"]


def test_a_bucket_is_measured_with_signed_requests(folder: Path, seaweed: SeaweedStore) -> None:
    variables = seaweed.environment()
    settings = resolve_s3_settings(variables)
    destination = parse_source("s3://bench/checkpoint")
    upload_files(find_files(folder).files, destination, settings, create_bucket=True)
    done = bench("s3://bench/checkpoint", "--json", "--wire-connections", "3", **variables)
    report = report_of(done)
    assert report["objects"] == 2
    assert report["loaders"]["wire"]["facts"] == {"connections": 3}
    assert report["measurements"]["headrace"][0]["tensor_bytes"] == TENSOR_BYTES
    assert report["measurements"]["wire"][0]["tensor_bytes"] == report["bytes"]
    assert seaweed.secret_key not in done.stdout + done.stderr


def test_one_object_can_be_named_and_the_table_is_for_people(folder: Path) -> None:
    name = next(folder.glob("*1-of*.safetensors"))
    done = bench(str(name))
    assert done.returncode == 0, done.stderr
    header, wire, ours, ratio, last = done.stdout.splitlines()
    assert header.split()[:2] == ["loader", "GB/s"]
    assert (wire.split()[0], ours.split()[0]) == ("wire", "headrace")
    assert ratio.startswith("headrace / wire, round by round: rate ")
    assert last.startswith("1 objects, 0.002 GB; medians of 1 rounds")


def test_peers_that_are_not_there_or_read_no_such_place_are_named_with_what_helps(
    folder: Path, bare_python: str
) -> None:
    done = bench(
        str(folder), "--vs", "all", "--json", "--wire-connections", "2", **{PEERS_VARIABLE: bare_python}
    )
    report = report_of(done)
    assert set(report["loaders"]) == {"wire", "headrace"}
    assert set(report["absent"]) == {"runai", "obstore", "aws", "safetensors"}
    assert "`pip install torch 'runai-model-streamer[s3]'`" in report["absent"]["runai"]
    assert "`make peers`" in report["absent"]["obstore"]
    assert report["absent"]["aws"] == "it reads buckets only"
    assert "obstore is not measured: " in done.stderr


def test_the_peers_python_is_the_flag_then_the_variable_then_that_of_make_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert peers_python(None) is None
    made = tmp_path / ".venv-peers" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.touch()
    assert peers_python(None) == str(made)
    monkeypatch.setenv(PEERS_VARIABLE, sys.executable)
    assert peers_python(None) == sys.executable
    assert peers_python(made) == str(made)
    with pytest.raises(UsageError, match="no Python"):
        peers_python(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--vs", "tensorizer"],
            "tensorizer is no peer; there are runai, obstore, aws, safetensors, and all",
        ),
        (["--vs", ","], "nothing is no peer"),
        (["--runs", "0"], "at least 1"),
    ],
)
def test_a_command_line_that_means_nothing_is_told_why(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", "/tmp", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_place_without_weights_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", str(tmp_path)]) == 1
    assert "holds no .safetensors file" in capsys.readouterr().err


def test_an_access_log_that_is_not_there_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", str(folder), "--access-log", str(folder / "none")]) == 1
    assert "Check --access-log." in capsys.readouterr().err


def test_bench_alone_tells_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert main(["bench", "--help"]) == 0
    assert "headrace bench load s3://my-bucket/qwen" in capsys.readouterr().out
