"""The real model from the real store: what lies in memory is what lies in the bucket."""

import hashlib
import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.store import SeaweedStore
from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import Store
from headrace.store.local.store import LocalStore
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.arena import Arena
from headrace.stream.checkpoint.header import Shard
from headrace.stream.checkpoint.headers import fetch_shard
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.transfer.transfer import Transfer

ALIGNMENT = 64


@pytest.fixture(scope="module")
def store(seaweed: SeaweedStore, smollm2_uri: str) -> S3Store:
    return S3Store(parse_source(smollm2_uri), resolve_s3_settings(seaweed.environment()))


@pytest.fixture(scope="module")
def file(smollm2_folder: Path) -> Iterator[mmap.mmap]:
    with (
        open(smollm2_folder / "model.safetensors", "rb") as content,
        mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        yield mapped


def weights_of(store: Store) -> tuple[ObjectInfo, Shard]:
    item = store.list().find("model.safetensors")
    assert item is not None
    reader = store.open_reader()
    shard = fetch_shard(reader, item, store.source.uri_of(item.name))
    reader.close()
    return item, shard


def place(shard: Shard) -> tuple[list[Placement], int]:
    """Each tensor at an aligned place of its own, in the reverse of the file's order; and the arena's size."""
    placements: list[Placement] = []
    end = 0
    for group, tensor in enumerate(sorted(shard.tensors.values(), key=lambda t: -t.start)):
        placements.append(
            Placement(0, tensor.start, tensor.end, end, group // 40, tensor.dtype, tensor.dtype)
        )
        end += -(-(tensor.end - tensor.start) // ALIGNMENT) * ALIGNMENT
    return placements, end


def assert_loaded(store: Store, file: mmap.mmap, chunk_bytes: int, concurrency: int) -> None:
    item, shard = weights_of(store)
    assert item.size_bytes == len(file)
    placements, size_bytes = place(shard)
    arena = Arena(size_bytes)
    plan = plan_reads(placements, chunk_bytes)
    transfer = Transfer(plan, [item], store, arena.view, concurrency=concurrency)
    transfer.wait()
    for p in placements:
        size = p.end - p.start
        loaded = hashlib.sha256(arena.view[p.destination : p.destination + size]).digest()
        assert loaded == hashlib.sha256(memoryview(file)[p.start : p.end]).digest(), p
    assert transfer.progress().bytes_done == plan.bytes_total


@pytest.mark.parametrize(
    ("chunk_bytes", "concurrency"),
    [(8 << 20, 8), ((1 << 20) + 2, 3), (64 << 20, 2), (1 << 40, 1)],
)
def test_every_tensor_in_memory_equals_its_bytes_in_the_bucket(
    chunk_bytes: int, concurrency: int, store: S3Store, file: mmap.mmap
) -> None:
    assert_loaded(store, file, chunk_bytes, concurrency)


def test_a_folder_is_loaded_the_same_way(smollm2_folder: Path, file: mmap.mmap) -> None:
    assert_loaded(LocalStore(parse_source(str(smollm2_folder))), file, 8 << 20, 4)


def test_weights_are_converted_on_the_way(store: S3Store, file: mmap.mmap) -> None:
    item, shard = weights_of(store)
    tensor = shard.tensors["model.layers.0.mlp.down_proj.weight"]
    arena = Arena((tensor.end - tensor.start) * 2)
    plan = plan_reads([Placement(0, tensor.start, tensor.end, 0, 0, "BF16", "F32")], 100_001)
    Transfer(plan, [item], store, arena.view, concurrency=4).wait()
    # A bfloat16 is the upper half of the float32 of the same value.
    assert arena.view[0::4].tobytes() == arena.view[1::4].tobytes() == bytes(arena.size_bytes // 4)
    assert arena.view[2::4].tobytes() == file[tensor.start : tensor.end : 2]
    assert arena.view[3::4].tobytes() == file[tensor.start + 1 : tensor.end : 2]


def test_small_files_come_whole(store: S3Store, smollm2_folder: Path) -> None:
    from headrace.stream.checkpoint.headers import fetch_file

    item = store.list().find("config.json")
    assert item is not None
    data = fetch_file(store.open_reader(), item)
    assert data == (smollm2_folder / "config.json").read_bytes()
    assert json.loads(data)["architectures"] == ["LlamaForCausalLM"]


def test_an_arena_is_zeroed_writable_and_of_the_size_asked_for() -> None:
    arena = Arena(12_345)
    assert arena.size_bytes == 12_345
    assert arena.view[-1] == 0
    arena.view[-1] = 7
    assert arena.view[-1] == 7


def test_an_arena_of_nothing_can_be_made() -> None:
    assert Arena(0).size_bytes == 0
