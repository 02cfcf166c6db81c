"""Memory given back and taken again: what is refused meanwhile, what comes back, and that the bytes do go."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from headrace.engine.change import room
from headrace.ipc.messages import Occupation, ReleaseMemory, ResumeMemory, UpdateWeights
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import encode_manifest
from headrace.stream.library.memory_room import Room
from tests.engine.changing import Loop, answer_of, gate, objects_of
from tests.engine.harness import environment, named_tensors, start_engine
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, error_answer, fault_server
from tests.manifests import sums_of_file
from tests.tiny_models import in_dtype, make_tiny, save_checkpoint

A = "s3://bucket/a"
BOTH: tuple[Occupation, ...] = ("weights", "kv_cache")
MIB = 1 << 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("two")
    for seed, name in enumerate("ab", start=1):
        save_checkpoint(make_tiny("llama", seed=seed), place / name, shards=2)
    return {name: place / name for name in "ab"}


@pytest.fixture(scope="module")
def texts(folders: dict[str, Path]) -> dict[str, list[int]]:
    return {name: answer_of(str(folder)) for name, folder in folders.items()}


@pytest.fixture
def server(folders: dict[str, Path]) -> Iterator[FaultServer]:
    """Model A in a store of which the environment knows."""
    with fault_server({}) as running:
        running.objects |= objects_of(folders["a"], "a")
        with environment(environment_of(running)):
            yield running


@pytest.fixture
def loop(server: FaultServer) -> Loop:
    engine, _ = start_engine(A, max_total_tokens=2048)
    return Loop(engine)


def says(loop: Loop) -> list[int]:
    rid = f"asked-{len(loop.tokens)}"
    loop.generate(rid)
    loop.finish(rid)
    return loop.tokens[rid]


@pytest.mark.parametrize("occupations", [BOTH, ("weights",), ("kv_cache",)])
def test_what_is_given_back_comes_again_and_the_text_is_the_same(
    loop: Loop, texts: dict[str, list[int]], occupations: tuple[Occupation, ...]
) -> None:
    assert says(loop) == texts["a"]
    released = loop.change(ReleaseMemory(occupations))
    assert released.success
    assert released.occupied == tuple(name for name in BOTH if name not in occupations)
    resumed = loop.change(ResumeMemory(occupations))
    assert resumed.success
    assert resumed.occupied == BOTH
    assert resumed.model == A
    if "weights" in occupations:
        assert "the same weights as before" in resumed.message
    assert says(loop) == texts["a"]


def test_they_come_back_one_by_one(loop: Loop, texts: dict[str, list[int]]) -> None:
    loop.change(ReleaseMemory(BOTH))
    assert loop.change(ResumeMemory(("weights",))).occupied == ("weights",)
    assert loop.change(ResumeMemory(("kv_cache",))).occupied == BOTH
    assert says(loop) == texts["a"]


def test_while_anything_is_gone_requests_are_refused_for_the_moment(loop: Loop, server: FaultServer) -> None:
    loop.change(ReleaseMemory(("weights",)))
    loop.generate("released")
    with gate(server, "a") as held:
        loop.send(ResumeMemory(BOTH))
        loop.until(held.reached.is_set, "a read of the weights")
        loop.generate("resuming")
        held.open()
        loop.until(lambda: len(loop.answers) == 2, "the end")
    for rid in ("released", "resuming"):
        assert (loop.failed[rid].status, loop.failed[rid].code) == (503, "memory_released")
        assert "/resume_memory_occupation" in loop.failed[rid].message


def test_it_is_kept_while_there_are_requests(loop: Loop, texts: dict[str, list[int]]) -> None:
    loop.generate("running")
    loop.generate("waiting")
    loop.turn()
    answer = loop.change(ReleaseMemory(BOTH))
    assert not answer.success
    assert "2 now" in answer.message
    assert answer.occupied == BOTH
    loop.finish("running", "waiting")
    assert loop.tokens["running"] == texts["a"]


def test_to_give_back_or_take_again_twice_changes_nothing(loop: Loop, texts: dict[str, list[int]]) -> None:
    for _ in range(2):
        assert loop.change(ReleaseMemory(BOTH)).success
    for _ in range(2):
        assert loop.change(ResumeMemory(BOTH)).occupied == BOTH
    assert says(loop) == texts["a"]


def test_objects_that_changed_meanwhile_are_served_and_that_is_said(
    loop: Loop, server: FaultServer, folders: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    loop.change(ReleaseMemory(("weights",)))
    server.objects |= objects_of(folders["b"], "a")
    answer = loop.change(ResumeMemory(("weights",)))
    assert answer.success
    assert "its objects changed meanwhile" in answer.message
    assert says(loop) == texts["b"]


def test_objects_that_no_longer_fit_are_refused_and_it_can_be_tried_again(
    loop: Loop, server: FaultServer, folders: dict[str, Path], tmp_path: Path, texts: dict[str, list[int]]
) -> None:
    loop.change(ReleaseMemory(("weights",)))
    save_checkpoint(make_tiny("llama", num_hidden_layers=2), tmp_path / "small", shards=2)
    server.objects |= objects_of(tmp_path / "small", "a")
    answer = loop.change(ResumeMemory(("weights",)))
    assert not answer.success
    assert "num_hidden_layers is 2, not 3" in answer.message
    assert answer.occupied == ("kv_cache",)
    server.objects |= objects_of(folders["a"], "a")
    assert loop.change(ResumeMemory(("weights",))).success
    assert says(loop) == texts["a"]


def test_a_store_that_fails_leaves_it_given_back_and_it_can_be_tried_again(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]]
) -> None:
    loop.change(ReleaseMemory(("weights",)))
    server.refuse = lambda asked: (
        error_answer(403, "AccessDenied") if asked.range and asked.range[0] > 0 else None
    )
    answer = loop.change(ResumeMemory(("weights",)))
    assert not answer.success
    assert "AccessDenied" in answer.message
    assert answer.occupied == ("kv_cache",)
    server.refuse = lambda asked: None
    assert loop.change(ResumeMemory(("weights",))).success
    assert says(loop) == texts["a"]


def test_where_others_have_taken_the_memory_it_is_refused_with_the_sum(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, texts: dict[str, list[int]]
) -> None:
    loop.change(ReleaseMemory(BOTH))
    with monkeypatch.context() as patch:
        patch.setattr(room, "memory_room", lambda: Room(MIB, "the test"))
        answer = loop.change(ResumeMemory(BOTH))
    assert not answer.success
    assert f"{MIB:,}" in answer.message
    assert answer.occupied == ()
    assert loop.change(ResumeMemory(BOTH)).success
    assert says(loop) == texts["a"]


def test_other_weights_may_come_into_the_place_that_was_given_back(
    loop: Loop, server: FaultServer, folders: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    server.objects |= objects_of(folders["b"], "b")
    loop.change(ReleaseMemory(BOTH))
    address = loop.engine.runner.model.parameters.embedding.data_ptr()
    assert loop.change(UpdateWeights("s3://bucket/b")).occupied == ("weights",)
    assert loop.engine.runner.model.parameters.embedding.data_ptr() == address
    loop.change(ResumeMemory(("kv_cache",)))
    assert says(loop) == texts["b"]


def test_random_weights_come_back_as_they_were(folders: dict[str, Path]) -> None:
    engine, _ = start_engine(str(folders["a"]), max_total_tokens=2048, load_format="dummy", random_seed=7)
    loop = Loop(engine)
    before = says(loop)
    loop.change(ReleaseMemory(BOTH))
    assert loop.change(ResumeMemory(BOTH)).success
    assert says(loop) == before


# ---- the bytes


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models whose weights stand out in what a process takes: 72 MiB."""
    place = tmp_path_factory.mktemp("large")
    shape: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 8192, "num_hidden_layers": 3}
    for seed in (1, 2):
        model = in_dtype(make_tiny("llama", seed=seed, **shape), torch.bfloat16)
        save_checkpoint(model, place / str(seed))
    return [str(place / "1"), str(place / "2")]


def resident() -> int:
    """Anonymous memory of this process: what a file is mapped for does not count."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def test_the_weights_memory_goes_and_comes(large: list[str]) -> None:
    engine, _ = start_engine(large[0], max_total_tokens=2048)
    loop = Loop(engine)
    text = says(loop)
    weights = sum(tensor.nbytes for tensor in named(loop))
    assert weights > 70 * MIB
    before = resident()
    loop.change(ReleaseMemory(("weights",)))
    released = resident()
    assert before - released > 0.95 * weights
    loop.change(ResumeMemory(("weights",)))
    assert resident() - released > 0.95 * weights
    assert says(loop) == text


def test_the_kv_caches_memory_goes(large: list[str]) -> None:
    engine, _ = start_engine(large[0], max_total_tokens=1 << 19, disable_radix_cache=True)
    loop = Loop(engine)
    for tensor in kv_tensors(loop):
        tensor.fill_(1)  # as if every page had been used
    size = sum(tensor.nbytes for tensor in kv_tensors(loop))
    assert size > 90 * MIB
    before = resident()
    loop.change(ReleaseMemory(("kv_cache",)))
    assert before - resident() > 0.95 * size


def test_after_a_change_the_old_weights_memory_is_free(large: list[str]) -> None:
    engine, _ = start_engine(large[0], max_total_tokens=2048)
    loop = Loop(engine)
    says(loop)
    weights = sum(tensor.nbytes for tensor in named(loop))
    before = resident()
    for model in (large[1], large[0], large[1]):
        assert loop.change(UpdateWeights(model)).success
    assert resident() - before < 0.5 * weights
    fresh, _ = start_engine(large[1], max_total_tokens=2048)
    assert says(loop) == says(Loop(fresh))


def test_a_failed_change_leaves_none_of_its_memory(large: list[str], tmp_path: Path) -> None:
    engine, _ = start_engine(large[0], max_total_tokens=2048)
    loop = Loop(engine)
    says(loop)
    weights = sum(tensor.nbytes for tensor in named(loop))
    before = resident()
    damaged = tmp_path / "damaged"
    shutil.copytree(large[1], damaged)
    weights_file = damaged / "model.safetensors"
    sums = sums_of_file(weights_file)
    (damaged / MANIFEST_NAME).write_bytes(encode_manifest({weights_file.name: sums}))
    with open(weights_file, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xa5")
    answer = loop.change(UpdateWeights(str(damaged)))
    assert not answer.success
    assert "are not what they should be" in answer.message
    assert resident() - before < 0.5 * weights


def named(loop: Loop) -> list[torch.Tensor]:
    """The parameters."""
    return list(named_tensors(loop.engine.runner.model.parameters).values())


def kv_tensors(loop: Loop) -> list[torch.Tensor]:
    """The KV cache's."""
    served = loop.engine._served
    assert served is not None
    return [*served.cache.keys, *served.cache.values]
