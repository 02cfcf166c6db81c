"""From a name to what each loader is given."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from headrace.bench.scene import Object
from headrace.bench.target import find_target
from headrace.errors import HeadraceError
from tests.faults.server import FaultServer, Stored

DATA = save({"w": np.arange(100, dtype=np.float32)})


@pytest.fixture
def server() -> Iterator[FaultServer]:
    server = FaultServer({"m/model.safetensors": Stored.of(DATA), "m/config.json": Stored.of(b"{}")})
    yield server
    server.stop()


def test_a_folder_s_weights_are_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DATA)
    target = find_target(str(tmp_path))
    assert target.kind == "file"
    assert target.scene.objects == (Object(str(path), len(DATA), path=str(path)),)
    assert find_target(str(path)).scene == target.scene


def test_an_object_in_a_bucket_has_a_url_that_requests_are_signed_for(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    target = find_target("s3://bucket/m")
    uri, url = "s3://bucket/m/model.safetensors", f"{server.url}/bucket/m/model.safetensors"
    assert target.scene.objects == (Object(uri, len(DATA), url=url, s3_uri=uri),)
    assert target.scene.signed
    assert "secret" not in target.scene.to_json()
    assert target.peer_environ["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert target.peer_environ["AWS_ENDPOINT_URL"] == server.url
    assert target.peer_environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] == "0"


def test_an_object_on_a_web_server_is_in_a_bucket_for_those_who_need_one(server: FaultServer) -> None:
    url = f"{server.url}/bucket/m/model.safetensors"
    target = find_target(url)
    assert target.kind == "web"
    assert target.scene.objects == (
        Object(url, len(DATA), url=url, s3_uri="s3://bucket/m/model.safetensors"),
    )
    assert not target.scene.signed
    assert target.peer_environ["AWS_ENDPOINT_URL"] == server.url


def test_a_folder_on_a_web_server_is_known_by_its_usual_names(server: FaultServer) -> None:
    target = find_target(f"{server.url}/bucket/m")
    assert [item.uri for item in target.scene.objects] == [f"{server.url}/bucket/m/model.safetensors"]


def test_what_is_no_checkpoint_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DATA[:-1])
    with pytest.raises(HeadraceError, match=r"model\.safetensors"):
        find_target(str(path))
