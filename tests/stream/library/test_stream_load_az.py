"""Whole loads from az:// in which the store refuses, throttles and replaces."""

import threading
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save

import headrace
from headrace.store.errors import AccessDenied, Changed
from tests.store.scripted_azure import Answer, Asked, ScriptedAzure, Stored, error, scripted_azure
from tests.store.token_server import token_server

TENSORS = {f"layer.{number}": torch.randn(300, 700) for number in range(12)}
DATA = save(TENSORS)
URI = "az://models/m"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAzure]:
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", str(1 << 20))
    with scripted_azure() as server:
        server.blobs["m/model.safetensors"] = Stored(DATA)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def assert_loads() -> None:
    loaded = headrace.load_file(URI)
    assert loaded.keys() == TENSORS.keys()
    assert all(loaded[name].equal(tensor) for name, tensor in TENSORS.items())


def answer_some(server: ScriptedAzure, answer: Answer, numbers: set[int]) -> None:
    """Give this answer to some of the reads of weights, counted from 1."""
    lock, count = threading.Lock(), 0

    def refuse(asked: Asked) -> Answer | None:
        nonlocal count
        if "if-match" not in asked.headers:
            return None
        with lock:
            count += 1
            return answer if count in numbers else None

    server.refuse = refuse


def test_a_load_survives_refusals_for_a_moment(server: ScriptedAzure) -> None:
    answer_some(server, error(503, "ServerBusy", Retry_After="0"), {2, 3, 5})
    assert_loads()


def test_a_load_survives_failures_of_the_store(server: ScriptedAzure) -> None:
    answer_some(server, error(500, "InternalError"), {2, 4})
    assert_loads()


def test_a_load_survives_a_token_that_is_refused_in_its_middle(
    server: ScriptedAzure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with token_server() as tokens:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        for name, value in tokens.environment.items():
            monkeypatch.setenv(name, value)
        answers = {"reads": 0}

        def refuse(asked: Asked) -> Answer | None:
            answers["reads"] += "if-match" in asked.headers
            if answers["reads"] > 3 and asked.headers["authorization"] == f"Bearer {tokens.given[0]}":
                return error(401, "InvalidAuthenticationInfo")
            return None

        server.refuse = refuse
        assert_loads()
        assert len(tokens.given) == 2


def test_an_object_that_is_replaced_in_the_middle_ends_the_load(server: ScriptedAzure) -> None:
    def refuse(asked: Asked) -> Answer | None:
        if asked.headers.get("x-ms-range", "").startswith("bytes=2"):
            server.blobs["m/model.safetensors"] = Stored(DATA[::-1], "0x2")
        return None

    server.refuse = refuse
    with pytest.raises(Changed, match="ETag 0x1"):
        headrace.load_file(URI)


def test_a_permission_that_is_taken_away_ends_the_load(server: ScriptedAzure) -> None:
    answer_some(server, error(403, "AuthorizationPermissionMismatch"), set(range(4, 1000)))
    with pytest.raises(
        AccessDenied, match=r"az://models/m/model.safetensors.*AuthorizationPermissionMismatch"
    ):
        headrace.load_file(URI)
