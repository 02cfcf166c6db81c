"""Loads from gs://: proved by the checksum that the store keeps of each object, pinned to what was listed."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import save

import headrace
from headrace.source.uri import parse_source
from headrace.store.errors import Corrupt
from headrace.store.gcs.store import GcsStore
from headrace.stream.library.credentials import Places
from tests.store.scripted_gcs import Answer, Asked, ScriptedGcs, Stored, scripted_gcs

KEY = "m/model.safetensors"
_RANDOM = random.Random(9)
TENSORS = {
    name: np.frombuffer(_RANDOM.randbytes(size), np.uint8)
    for name, size in (("a", 100), ("b", 3_000_000), ("c", 7))
}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedGcs]:
    with scripted_gcs() as running:
        running.objects[KEY] = Stored(save(TENSORS), 7)
        monkeypatch.setenv("HEADRACE_GCS_ENDPOINT", running.url)
        yield running


@pytest.mark.parametrize("uri", ["gs://bucket/m", "gs://bucket/m/model.safetensors"])
def test_the_stores_checksum_proves_a_load_without_another_request(uri: str, server: ScriptedGcs) -> None:
    loaded = headrace.load_file(uri, framework="numpy", verify="require")
    assert all(np.array_equal(loaded[name], array) for name, array in TENSORS.items())
    assert all(asked.query.get("alt") == "media" or "prefix" in asked.query for asked in server.log)


def test_a_byte_that_is_wrong_in_the_store_ends_a_load(server: ScriptedGcs) -> None:
    data = bytearray(save(TENSORS))
    data[-1] ^= 1
    damaged = Stored(bytes(data), 7)

    def damage(asked: Asked) -> Answer | None:
        if asked.query.get("alt") == "media":
            server.objects[KEY] = damaged
        return None

    server.refuse = damage
    with pytest.raises(Corrupt, match="crc32c that the store keeps"):
        headrace.load_file("gs://bucket/m", framework="numpy", verify="auto")


def test_the_folders_of_one_call_share_who_asks(server: ScriptedGcs) -> None:
    places = Places()
    first, second = (places.open(parse_source(f"gs://bucket/{name}")) for name in "ab")
    assert isinstance(first, GcsStore) and isinstance(second, GcsStore)
    assert first.settings is second.settings


def test_an_object_that_is_replaced_is_loaded_anew_where_that_is_wanted(
    server: ScriptedGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stream.restart.QUIET_S", (1e-3, 1e-3))
    new = {**TENSORS, "a": TENSORS["a"][::-1].copy()}

    def replace(asked: Asked) -> Answer | None:
        if asked.query.get("generation") == "7":
            server.objects[KEY] = Stored(save(new), 8)
        return None

    server.refuse = replace
    loaded = headrace.load_file("gs://bucket/m", framework="numpy", restart_on_change=True)
    assert np.array_equal(loaded["a"], new["a"])
