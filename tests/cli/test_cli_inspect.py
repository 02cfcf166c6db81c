"""`headrace inspect` as a person and a script see it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.cli.main import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "layers.0.w": np.array([[1.0, -2.0], [0.0, 4.0]], np.float32),
        "layers.1.w": np.array([np.nan, np.inf], np.float32),
        "embed": np.arange(6, dtype=np.int16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_tensors_and_their_totals_are_tables(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["NAME", "DTYPE", "SHAPE", "SIZE", "OBJECT"]
    assert "layers.0.w  F32    [2, 2]  16 B  model.safetensors" in said
    assert "layers.1" in said.partition("LAYER")[2]
    assert said.endswith("3 tensors, 12 parameters, 36 B in 1 object.\n")


def test_json_has_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file.parent), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["total"] == {"label": "all", "tensors": 3, "elements": 12, "size_bytes": 36}
    assert facts["objects"] == [{"name": "model.safetensors", "size_bytes": file.stat().st_size}]
    assert {tensor["name"]: tensor["shape"] for tensor in facts["tensors"]} == {
        "layers.0.w": [2, 2],
        "layers.1.w": [2],
        "embed": [6],
    }


def test_the_numbers_of_one_tensor_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--tensor", "layers.0.w"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (said["min"], said["max"], said["mean"], said["zeros"]) == ("-2", "4", "0.75", "1 (25 %)")


def test_a_tensor_without_finite_numbers_has_no_mean(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--tensor", "layers.1.w", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nan"], facts["inf"], facts["min"], facts["mean"]) == (1, 1, None, None)


def test_a_tensor_that_is_not_there_is_an_error_with_near_names(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(file), "--tensor", "layer.0.w"]) == 1
    assert "Did you mean layers.0.w" in capsys.readouterr().err


def test_a_name_that_no_terminal_shows_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"a\x1b[31m": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert main(["inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "a\\x1b[31m" in said


def test_a_place_without_weights_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    assert main(["inspect", str(tmp_path)]) == 1
    assert "Pickled weights" in capsys.readouterr().err
