"""Other weights in a running engine: who gets which text, what is refused, and what a failure leaves."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from headrace.engine.change import room, weight_change
from headrace.engine.change.weight_scripts import WeightsLost
from headrace.ipc.messages import Generate, ReleaseMemory, ResumeMemory, SamplingParams, UpdateWeights
from headrace.ipc.options import LoadConfig
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import encode_manifest
from headrace.stream.arena import Arena
from headrace.stream.library.memory_room import Room
from tests.engine.changing import ANSWER, PROMPT, Loop, answer_of, gate, objects_of
from tests.engine.harness import environment, start_engine
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, Stored, error_answer, fault_server
from tests.manifests import sums_of_file
from tests.tiny_models import in_dtype, make_tiny, save_checkpoint

A, B = "s3://bucket/a", "s3://bucket/b"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of one shape."""
    place = tmp_path_factory.mktemp("two")
    for seed, name in enumerate("ab", start=1):
        save_checkpoint(make_tiny("llama", seed=seed), place / name, shards=2)
    return {name: place / name for name in "ab"}


@pytest.fixture(scope="module")
def texts(folders: dict[str, Path]) -> dict[str, list[int]]:
    """What fresh engines on them say."""
    found = {name: answer_of(str(folder)) for name, folder in folders.items()}
    assert found["a"] != found["b"]
    return found


@pytest.fixture
def server(folders: dict[str, Path]) -> Iterator[FaultServer]:
    """Both in a store of which the environment knows."""
    with fault_server({}) as running:
        for name, folder in folders.items():
            running.objects |= objects_of(folder, name)
        with environment(environment_of(running)):
            yield running


@pytest.fixture
def loop(server: FaultServer) -> Loop:
    """An engine that serves A."""
    engine, _ = start_engine(A, max_total_tokens=2048)
    return Loop(engine)


def says(loop: Loop) -> list[int]:
    """What the engine says now."""
    rid = f"asked-{len(loop.tokens)}"
    loop.generate(rid)
    loop.finish(rid)
    return loop.tokens[rid]


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory_room", lambda: Room(1 << 20, "the test"))


def test_after_a_change_the_text_is_that_of_a_fresh_engine(loop: Loop, texts: dict[str, list[int]]) -> None:
    assert says(loop) == texts["a"]
    answer = loop.change(UpdateWeights(B))
    assert answer.success
    assert answer.model == B
    assert says(loop) == texts["b"]
    assert loop.change(UpdateWeights(A)).success
    assert says(loop) == texts["a"]


def test_requests_during_the_load_are_answered_by_the_old_weights_and_none_of_them_waits(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]]
) -> None:
    with gate(server, "b") as held:
        loop.generate("before")
        loop.send(UpdateWeights(B))
        loop.until(held.reached.is_set, "a read of B's weights")
        loop.generate("during")
        loop.finish("before", "during")
        assert not loop.answers
        held.open()
        loop.until(lambda: bool(loop.answers), "the end of the change")
    assert loop.tokens["before"] == loop.tokens["during"] == texts["a"]
    assert says(loop) == texts["b"]


def test_what_runs_when_the_new_weights_are_there_ends_on_the_old_ones_and_what_comes_then_waits(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]]
) -> None:
    scheduler = loop.engine.scheduler
    with gate(server, "b") as held:
        loop.send(UpdateWeights(B))
        loop.until(held.reached.is_set, "a read of B's weights")
        loop.generate("old", 400)
        loop.turn()
        held.open()
        loop.until(lambda: scheduler.is_holding, "the new weights", compute=False)
    assert not loop.answers
    assert "old" not in loop.ended
    loop.generate("new")
    loop.generate("new too")
    loop.turn()
    assert scheduler.waiting_count == 2
    loop.finish("new", "new too")
    assert loop.answers[0].paused_requests == 2
    assert len(loop.tokens["old"]) == 400
    assert loop.tokens["old"][:ANSWER] == texts["a"]
    assert loop.tokens["new"] == loop.tokens["new too"] == texts["b"]


def test_requests_are_ended_where_that_is_asked_for_and_not_before_the_new_weights_are_there(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]]
) -> None:
    with gate(server, "b") as held:
        loop.generate("running", 480)
        loop.turn()
        loop.send(UpdateWeights(B, abort_requests=True))
        loop.until(held.reached.is_set, "a read of B's weights", compute=False)
        assert not loop.failed
        held.open()
        loop.until(lambda: bool(loop.answers), "the end of the change", compute=False)
    failure = loop.failed["running"]
    assert (failure.status, failure.code) == (503, "weights_changed")
    assert "change of weights" in failure.message
    assert loop.answers[0].paused_requests == 1
    assert "running" not in loop.ended
    assert says(loop) == texts["b"]


def test_a_failed_change_ends_no_request_even_where_that_was_asked_for(
    loop: Loop, texts: dict[str, list[int]]
) -> None:
    loop.generate("running")
    loop.turn()
    assert not loop.change(UpdateWeights("s3://bucket/nothing", abort_requests=True)).success
    loop.finish("running")
    assert loop.tokens["running"] == texts["a"]


def test_prefixes_of_the_old_weights_are_forgotten_or_kept_as_asked(loop: Loop) -> None:
    scheduler = loop.engine.scheduler
    for flush, kept in ((False, True), (True, False)):
        loop.generate(f"long-{flush}", prompt=[9] * 64)
        loop.finish(f"long-{flush}")
        assert scheduler.cached_page_count > 0
        assert loop.change(UpdateWeights(B, flush_cache=flush)).success
        assert (scheduler.cached_page_count > 0) == kept


def test_ends_of_sequence_are_those_of_the_new_checkpoint(
    loop: Loop, server: FaultServer, folders: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    end = texts["b"][3]
    file = json.dumps({"eos_token_id": end}).encode()
    server.objects["b/generation_config.json"] = Stored.of(file)
    loop.change(UpdateWeights(B))
    loop.send(Generate("x", PROMPT, SamplingParams(max_tokens=ANSWER, temperature=0.0)))
    loop.finish("x")
    assert loop.tokens["x"] == texts["b"][: texts["b"].index(end) + 1]


def test_the_same_name_with_new_objects_is_new_weights(
    loop: Loop, server: FaultServer, folders: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    server.objects |= objects_of(folders["b"], "a")
    assert says(loop) == texts["a"]
    assert loop.change(UpdateWeights(A)).success
    assert says(loop) == texts["b"]


def test_the_old_weights_are_let_go_without_a_search_for_garbage(loop: Loop) -> None:
    arenas = weakref.WeakSet[Arena]()

    def remember() -> None:
        served = loop.engine._changes.served if loop.engine._changes else loop.engine._served
        assert served is not None and served.arena is not None
        arenas.add(served.arena)

    says(loop)
    gc.collect()
    gc.disable()
    try:
        remember()
        for model in (B, A, B):
            assert loop.change(UpdateWeights(model)).success
            says(loop)
            remember()
        assert len(arenas) == 1
    finally:
        gc.enable()


def test_an_engine_that_changes_gives_signs_of_life_and_looks_for_nothing_afterwards(
    loop: Loop, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_change, "_SHOW_EVERY_S", 0.0)
    with gate(server, "b") as held:
        loop.send(UpdateWeights(B))
        loop.until(held.reached.is_set, "a read of B's weights")
        before = loop.signs
        loop.until(lambda: loop.signs > before + 3, "signs of life")
        held.open()
        loop.until(lambda: bool(loop.answers), "the end of the change")
    changes = loop.engine._changes
    assert changes is not None
    assert changes.wait_s is None
    loop.turn()
    count = loop.signs
    loop.turn()
    assert loop.signs == count


def test_parameters_that_lie_elsewhere_are_copied_into_at_idle(
    loop: Loop, texts: dict[str, list[int]]
) -> None:
    """As on a GPU, where the weights come by way of host memory; here the other place is host memory, too."""
    served = loop.engine._served
    assert served is not None
    loop.engine._served = replace(served, arena=None)
    address = loop.engine.runner.model.parameters.embedding.data_ptr()
    assert loop.change(UpdateWeights(B)).success
    assert loop.engine.runner.model.parameters.embedding.data_ptr() == address
    assert says(loop) == texts["b"]
    assert loop.change(ReleaseMemory(("weights", "kv_cache"))).success
    assert loop.change(ResumeMemory(("weights", "kv_cache"))).success
    assert says(loop) == texts["b"]


# ---- refusals before a byte is replaced


def save_as(server: FaultServer, tmp_path: Path, name: str, family: str, **overrides: Any) -> str:
    folder = tmp_path / name
    save_checkpoint(make_tiny(family, seed=9, **overrides), folder)
    server.objects |= objects_of(folder, name)
    return f"s3://bucket/{name}"


@pytest.mark.parametrize(
    ("family", "overrides", "told"),
    [
        ("qwen2", {}, "its family is qwen2, not llama"),
        ("llama", {"num_hidden_layers": 2}, "num_hidden_layers is 2, not 3"),
        ("llama", {"intermediate_size": 128}, "intermediate_size is 128, not 96"),
        ("llama", {"tie_word_embeddings": True}, "tie_word_embeddings is True, not False"),
        ("llama", {"max_position_embeddings": 256}, "its context is 256 tokens, and requests may have 512"),
    ],
)
def test_another_shape_is_refused_by_name_and_no_weight_of_it_is_read(
    loop: Loop,
    server: FaultServer,
    tmp_path: Path,
    texts: dict[str, list[int]],
    family: str,
    overrides: dict[str, object],
    told: str,
) -> None:
    other = save_as(server, tmp_path, "other", family, **overrides)
    server.log.clear()
    answer = loop.change(UpdateWeights(other, in_place=True))
    assert not answer.success
    assert told in answer.message
    assert answer.model == A
    assert [asked.range[0] for asked in server.log if asked.range and "safetensors" in asked.path] == [0]
    assert says(loop) == texts["a"]


def test_heads_that_are_divided_otherwise_are_refused_though_the_parameters_have_the_same_shapes(
    loop: Loop, server: FaultServer
) -> None:
    config = json.loads(server.objects["b/config.json"].data)
    # Of q, k and v together: 4 + 2 · 2 heads, and 6 + 2 · 1.
    config |= {"num_attention_heads": 6, "num_key_value_heads": 1}
    server.objects["b/config.json"] = Stored.of(json.dumps(config).encode())
    answer = loop.change(UpdateWeights(B))
    assert not answer.success
    assert "num_attention_heads is 6, not 4; num_key_value_heads is 1, not 2" in answer.message


def test_another_dtype_is_refused_with_the_flag_that_would_convert_it(
    loop: Loop, server: FaultServer, tmp_path: Path
) -> None:
    folder = tmp_path / "half"
    save_checkpoint(in_dtype(make_tiny("llama", seed=9), torch.bfloat16), folder)
    server.objects |= objects_of(folder, "half")
    answer = loop.change(UpdateWeights("s3://bucket/half"))
    assert not answer.success
    assert "its dtype is bfloat16, not float32" in answer.message
    assert "--dtype float32" in answer.message


def test_with_a_dtype_of_the_operators_other_weights_are_converted_as_at_the_start(
    server: FaultServer, tmp_path: Path
) -> None:
    folder = tmp_path / "half"
    save_checkpoint(in_dtype(make_tiny("llama", seed=9), torch.bfloat16), folder)
    server.objects |= objects_of(folder, "half")
    engine, _ = start_engine(A, max_total_tokens=2048, dtype="float32")
    loop = Loop(engine)
    assert loop.change(UpdateWeights("s3://bucket/half")).success
    fresh, _ = start_engine("s3://bucket/half", max_total_tokens=2048, dtype="float32")
    assert says(loop) == says(Loop(fresh))


@pytest.mark.parametrize("missing", ["config.json", "model-00002-of-00002.safetensors"])
def test_an_incomplete_checkpoint_is_refused(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]], missing: str
) -> None:
    del server.objects[f"b/{missing}"]
    answer = loop.change(UpdateWeights(B))
    assert not answer.success
    assert missing in answer.message
    assert says(loop) == texts["a"]


def test_no_tokenizer_is_needed(loop: Loop, server: FaultServer, texts: dict[str, list[int]]) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        del server.objects[f"b/{name}"]
    assert loop.change(UpdateWeights(B)).success
    assert says(loop) == texts["b"]


def test_a_second_change_meanwhile_is_refused_and_does_not_disturb_the_first(
    loop: Loop, server: FaultServer
) -> None:
    with gate(server, "b") as held:
        loop.send(UpdateWeights(B))
        loop.until(held.reached.is_set, "a read of B's weights")
        for other in (UpdateWeights(A), ResumeMemory(("weights",))):
            loop.send(other)
            assert not loop.answers[-1].success
            assert "under way" in loop.answers[-1].message
        held.open()
        loop.until(lambda: len(loop.answers) == 3, "the end of the first")
    assert loop.answers[-1].model == B


# ---- failures on the way


def test_weights_that_are_not_what_the_manifest_says_leave_the_old_ones(
    loop: Loop, server: FaultServer, folders: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    weights = sorted(folders["b"].glob("*.safetensors"))
    manifest = encode_manifest({path.name: sums_of_file(path) for path in weights})
    server.objects[f"b/{MANIFEST_NAME}"] = Stored.of(manifest)
    shard = "b/model-00002-of-00002.safetensors"
    damaged = bytearray(server.objects[shard].data)
    damaged[-7] ^= 1
    server.objects[shard] = Stored(bytes(damaged), server.objects[shard].etag)
    answer = loop.change(UpdateWeights(B))
    assert not answer.success
    assert "are not what they should be" in answer.message
    assert says(loop) == texts["a"]


def replaced(server: FaultServer) -> bytes | None:
    server.objects["b/model-00002-of-00002.safetensors"] = Stored.of(b"something else")
    return None


def away(server: FaultServer) -> bytes | None:
    return error_answer(403, "AccessDenied")


@pytest.mark.parametrize("fault", [replaced, away])
def test_a_load_that_fails_on_its_way_leaves_the_old_weights(
    loop: Loop,
    server: FaultServer,
    texts: dict[str, list[int]],
    fault: Callable[[FaultServer], bytes | None],
) -> None:
    server.refuse = lambda asked: (
        fault(server) if asked.range and asked.range[0] > 0 and asked.path.startswith("/bucket/b/") else None
    )
    loop.generate("running")
    answer = loop.change(UpdateWeights(B))
    assert not answer.success
    assert answer.model == A
    assert answer.occupied == ("weights", "kv_cache")
    assert "s3://bucket/b" in answer.message
    loop.finish("running")
    assert loop.tokens["running"] == says(loop) == texts["a"]


# ---- where there is no room for both


def test_without_room_for_both_it_is_refused_with_the_sum_and_the_remedy(
    loop: Loop, texts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    answer = loop.change(UpdateWeights(B))
    assert not answer.success
    assert f"{1 << 20:,}" in answer.message
    assert "in_place=true" in answer.message
    assert says(loop) == texts["a"]


def test_what_the_kv_cache_may_yet_take_is_counted(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = start_engine(A, max_total_tokens=1 << 20)
    monkeypatch.setattr(room, "memory_room", lambda: Room(300 << 20, "the test"))
    answer = Loop(engine).change(UpdateWeights(B))
    assert not answer.success
    assert "that the KV cache may yet take" in answer.message


def test_in_place_the_old_weights_are_overwritten_once_nothing_runs(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    embedding = loop.engine.runner.model.parameters.embedding.data_ptr()
    loop.generate("old", 100)
    loop.turn()
    with gate(server, "b") as held:
        loop.send(UpdateWeights(B, in_place=True))
        loop.until(held.reached.is_set, "a read of B's weights")
        assert "old" in loop.ended
        loop.generate("new")
        loop.turn()
        assert "new" not in loop.tokens
        held.open()
        loop.finish("new")
    assert loop.tokens["old"][:ANSWER] == texts["a"]
    assert loop.tokens["new"] == texts["b"]
    assert loop.answers[0].success
    assert loop.answers[0].paused_requests == 1
    assert loop.engine.runner.model.parameters.embedding.data_ptr() == embedding


def test_a_failure_in_place_is_told_as_the_loss_that_it_is(
    loop: Loop, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    server.refuse = lambda asked: (
        away(server) if asked.range and asked.range[0] > 0 and asked.path.startswith("/bucket/b/") else None
    )
    answer = loop.change(UpdateWeights(B, in_place=True))
    assert not answer.success
    assert "overwritten in part" in answer.message
    assert answer.model == A
    assert "weights" not in answer.occupied
    changes = loop.engine._changes
    assert changes is not None
    with pytest.raises(WeightsLost):
        changes.raise_if_lost()


def test_a_stale_manifest_is_seen_before_anything_is_overwritten(
    loop: Loop, server: FaultServer, texts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    server.objects[f"b/{MANIFEST_NAME}"] = Stored.of(encode_manifest({}))
    answer = loop.change(UpdateWeights(B, in_place=True))
    assert not answer.success
    assert "is stale" in answer.message
    assert answer.occupied == ("weights", "kv_cache")
    assert says(loop) == texts["a"]


def test_where_verification_is_required_its_lack_is_seen_before_anything_is_overwritten(
    loop: Loop, texts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.engine.options = structs.replace(loop.engine.options, load_config=LoadConfig(verify="require"))
    no_room(monkeypatch)
    answer = loop.change(UpdateWeights(B, in_place=True))
    assert not answer.success
    assert "cannot be verified" in answer.message
    assert says(loop) == texts["a"]


def test_random_weights_give_way_to_real_ones(server: FaultServer, texts: dict[str, list[int]]) -> None:
    engine, _ = start_engine(A, max_total_tokens=2048, load_format="dummy")
    loop = Loop(engine)
    assert says(loop) != texts["a"]
    assert loop.change(UpdateWeights(A)).success
    assert says(loop) == texts["a"]
