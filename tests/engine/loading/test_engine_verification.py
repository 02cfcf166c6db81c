"""What the engine says of its weights' checksums, and that it starts through a change of the objects."""

import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine.loading import load as begun
from headrace.engine.startup import start
from headrace.ipc.messages import EngineMessage, LoadFailed, ModelInfo, Ready
from headrace.ipc.options import EngineOptions, LoadConfig
from headrace.ipc.timeline import Timeline
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import encode_manifest
from headrace.store.errors import Changed
from headrace.stream import restart
from headrace.stream.arena import Arena
from tests.engine.engine_process import running_engine, until_ready
from tests.engine.harness import Silent
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, Stored, fault_server
from tests.manifests import sums_of_file
from tests.tiny_models import checkpoint_tensors, make_tiny, save_checkpoint

NO_MANIFEST = f"there is no {MANIFEST_NAME}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    save_checkpoint(make_tiny("llama"), path, shards=2)
    return path


def write_manifest(folder: Path) -> None:
    weights = sorted(folder.glob("*.safetensors"))
    (folder / MANIFEST_NAME).write_bytes(encode_manifest({path.name: sums_of_file(path) for path in weights}))


def verified(ready: Ready) -> str:
    (line,) = [line for line in ready.summary if "erif" in line]
    return line


def summary(folder: Path, tmp_path: Path, **config: str) -> str:
    with running_engine(tmp_path, str(folder), load_config=LoadConfig(**config)) as engine:
        _, ready = until_ready(engine)
    return verified(ready)


def failure(folder: Path, tmp_path: Path, **config: str) -> LoadFailed:
    with running_engine(tmp_path, str(folder), load_config=LoadConfig(**config)) as engine:
        _, failed = engine.receive_until(LoadFailed)
        assert engine.wait() == 1
    return failed


def test_with_a_manifest_all_of_the_weights_are_verified(folder: Path, tmp_path: Path) -> None:
    write_manifest(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert summary(folder, tmp_path) == f"Verified 100 % of the {size:,} bytes read, by {MANIFEST_NAME}."


def test_without_one_it_is_said_that_nothing_can_be_verified(folder: Path, tmp_path: Path) -> None:
    said = summary(folder, tmp_path)
    assert said == f"Not verifiable: {NO_MANIFEST}."


def test_a_weight_of_another_value_ends_the_load_by_name(folder: Path, tmp_path: Path) -> None:
    write_manifest(folder)
    path = folder / "model-00002-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 16
    path.write_bytes(content)
    failed = failure(folder, tmp_path)
    assert failed.error == "Corrupt"
    assert re.search(rf"{path}: Bytes \d+-{len(content) - 1} are not what they should be", failed.message)
    assert failed.remedy
    with running_engine(tmp_path, str(folder), load_config=LoadConfig(verify="off")) as engine:
        _, ready = until_ready(engine)
    assert not any("erif" in line for line in ready.summary)


def test_a_stale_manifest_ends_the_load(folder: Path, tmp_path: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(encode_manifest({}))
    failed = failure(folder, tmp_path)
    assert failed.error == "BadManifest"
    assert f"{folder}/{MANIFEST_NAME} is stale: it does not know model-00001-of-00002" in failed.message


def test_where_verification_is_required_its_lack_is_an_error(folder: Path, tmp_path: Path) -> None:
    failed = failure(folder, tmp_path, verify="require")
    assert failed.error == "NotVerifiable"
    assert NO_MANIFEST in failed.message


def objects_of(folder: Path) -> dict[str, Stored]:
    return {f"model/{path.name}": Stored.of(path.read_bytes()) for path in folder.iterdir()}


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """The model in a store of which the environment knows."""
    with fault_server({}) as running:
        running.objects = objects_of(folder)
        for name, value in environment_of(running).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(restart, "QUIET_S", (0.0001, 0.0001))
        yield running


def replaced_when_weights_are_read(server: FaultServer, objects: dict[str, Stored]) -> None:
    """Another upload is there as soon as a weight beyond the headers' first reads is asked for."""
    shard = "model/model-00002-of-00002.safetensors"
    reads: list[int] = []

    def look(asked: faults.Asked) -> bytes | None:
        if asked.path == f"/bucket/{shard}" and asked.method == "GET":
            reads.append(1)
            if len(reads) == 2:
                server.objects = objects
        return None

    server.refuse = look


def load(**config: bool) -> tuple[Any, list[EngineMessage]]:
    sent: list[EngineMessage] = []
    options = EngineOptions(
        model="s3://bucket/model",
        device="cpu",
        mem_fraction_static=0.5,
        max_total_tokens=512,
        skip_server_warmup=True,
        load_config=LoadConfig(**config),
    )
    return start(options, Silent(sent), Timeline(0.0)), sent


def test_an_upload_under_the_load_is_an_error_by_default(server: FaultServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_checkpoint(make_tiny("llama", seed=1), other, shards=2)
    replaced_when_weights_are_read(server, objects_of(other))
    with pytest.raises(Changed):
        load()


def test_with_restart_on_change_the_new_version_is_served_and_nothing_of_the_old(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    model = make_tiny("llama", seed=1)
    save_checkpoint(model, other, shards=2)
    replaced_when_weights_are_read(server, objects_of(other))
    arenas: list[weakref.ref[Arena]] = []
    alive: list[bool] = []

    class Watched(Arena):
        """Says when it is made how many are still there."""

        def __init__(self, size_bytes: int) -> None:
            alive.append(any(arena() is not None for arena in arenas))
            arenas.append(weakref.ref(self))
            super().__init__(size_bytes)

    monkeypatch.setattr(begun, "Arena", Watched)
    engine, sent = load(restart_on_change=True)
    assert alive == [False, False]
    assert len([message for message in sent if isinstance(message, ModelInfo)]) == 2
    wanted = checkpoint_tensors(model)["model.norm.weight"]
    assert torch.equal(engine.runner.model.parameters.norm.float(), wanted.float())
    (ready,) = [message for message in sent if isinstance(message, Ready)]
    given_up, wait, again = (
        [phase for phase in ready.phases if phase.name == name][-1]
        for name in ("transfer, given up", "wait for the end of an upload", "open store")
    )
    assert given_up.start_s < given_up.end_s == wait.start_s < wait.end_s <= again.start_s
