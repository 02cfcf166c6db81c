"""Plain names on the command line: the hub's, where no folder has that name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from headrace.cli.main import main
from tests.hub_imitation import Hub, hub_imitation
from tests.tiny_models import make_tiny, save_checkpoint

NAME = "org/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "model"
    save_checkpoint(make_tiny("llama"), folder, shards=2)
    return folder


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model, this process's own; the working directory is empty."""
    with hub_imitation() as running:
        running.put(model, NAME)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        for variable, value in {"HF_ENDPOINT": running.hub_url, "HF_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(variable, value)
        yield running


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["check", *arguments])
    return status, capsys.readouterr().out


def test_a_plain_name_is_checked_on_the_hub(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(capsys, NAME)
    assert status == 0
    assert f"endpoint {hub.hub_url} (HF_ENDPOINT)" in said


def test_a_folder_of_that_name_is_checked_instead(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("org").mkdir()
    Path(NAME).symlink_to(model)
    status, _ = checked(capsys, NAME)
    assert (status, hub.asked) == (0, [])


def test_offline_the_downloaded_snapshot_is_checked(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "home" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    snapshot_download(NAME, endpoint=hub.hub_url, cache_dir=cache, token=False)
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, _ = checked(capsys, NAME)
    assert (status, hub.asked) == (0, [])


def test_offline_without_a_snapshot_the_hub_is_not_asked(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, said = checked(capsys, NAME)
    assert (status, hub.asked) == (1, [])
    assert "HF_HUB_OFFLINE is set" in said


def test_a_name_that_is_nowhere_fails_with_both_places(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(capsys, "org/nothing")
    assert status == 1
    assert "There is no folder org/nothing here, and there is no such model on the hub" in said


def test_a_model_is_pulled_and_is_the_same(hub: Hub, model: Path, tmp_path: Path) -> None:
    assert main(["pull", f"hf://{NAME}", str(tmp_path / "copy"), "--quiet"]) == 0
    for path in model.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_json_tells_the_settings(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(capsys, NAME, "--json")
    assert status == 0
    assert hub.hub_url in json.dumps(json.loads(said))


def test_a_revision_is_checked_as_serve_would_be_told(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    hub.repository(NAME).commit(files, "feature/x")
    status, said = checked(capsys, NAME, "--revision", "feature/x")
    assert status == 0
    assert "revision feature/x (the model's name)" in said


def test_a_revision_of_what_has_none_fails_the_check(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = checked(capsys, str(model), "--revision", "main", "--json")
    (finding,) = json.loads(said)["checks"]
    assert (status, finding["check"], finding["status"]) == (1, "name", "fail")
