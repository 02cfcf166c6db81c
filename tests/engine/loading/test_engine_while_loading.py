"""Requests that come while the model loads: what they get, when it is sent, and what the load is otherwise."""

import math
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from headrace.engine import startup
from headrace.engine.device import BadDevice
from headrace.engine.loading import load as begun
from headrace.engine.loading.inbox import Stopped
from headrace.ipc.messages import (
    Abort,
    Accepting,
    CacheFlushed,
    FlushCache,
    FrontMessage,
    Generate,
    LogLine,
    ModelInfo,
    Ready,
    ReleaseMemory,
    SamplingParams,
    StepOutput,
    Stop,
)
from headrace.ipc.options import EngineOptions, LoadConfig
from headrace.models.registry import FAMILIES
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import encode_manifest
from headrace.store.errors import Changed, Corrupt
from headrace.stream import restart
from tests.engine.harness import ask, greedy, start_engine
from tests.engine.held_loads import (
    URI,
    Do,
    Event,
    GatedStore,
    Pass,
    Script,
    Until,
    caught_engine,
    gated_store,
    is_weight,
    load,
    objects_of,
    shuffled_in,
    tensor_spans,
)
from tests.faults.server import Exchange, Stored, close_before_head, error, reset_body, short_body
from tests.manifests import sums_of_file
from tests.models.harness import theirs_greedy
from tests.tiny_models import checkpoint_tensors, in_dtype, make_tiny, random_ids, save_checkpoint

ANSWER = 6
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_checkpoint(make_tiny("llama", tie_word_embeddings=True), path)
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[GatedStore]:
    with gated_store(folder) as running:
        yield running


def prompt(length: int, seed: int = 1) -> list[int]:
    return random_ids(make_tiny("llama"), length, seed)


def generate(rid: str, ids: list[int], answer: int = ANSWER) -> Generate:
    return Generate(rid, ids, greedy(answer))


def alone(folder: Path, ids: list[int], answer: int = ANSWER) -> list[int]:
    """What the prompt gets from an engine that is loaded."""
    engine, _ = start_engine(str(folder), max_total_tokens=2048)
    return ask(engine, ids, answer)


# ---- what is sent, and when


def test_a_prompt_that_waits_is_the_warm_up_and_gets_its_token_before_ready(
    folder: Path, store: GatedStore
) -> None:
    loaded = load(URI, [generate("a", prompt(20))], store)
    kinds = [type(message) for message in loaded.others]
    assert kinds == [ModelInfo, Accepting, StepOutput, Ready]
    (output,) = loaded.outputs
    assert len(output.token_ids) == 1
    assert "first prompt" in loaded.phases
    assert "warm up" not in loaded.phases
    assert loaded.finish()["a"].tokens == alone(folder, prompt(20))


def test_without_a_prompt_there_is_a_warm_up(store: GatedStore) -> None:
    loaded = load(URI, [], store)
    assert [type(message) for message in loaded.others] == [ModelInfo, Accepting, Ready]
    assert "warm up" in loaded.phases
    assert "first prompt" not in loaded.phases


def test_without_a_prompt_and_a_warm_up_there_is_neither(store: GatedStore) -> None:
    phases = load(URI, [], store, skip_server_warmup=True).phases
    assert not {"warm up", "first prompt"} & phases


def test_a_prompt_that_has_gone_leaves_the_warm_up_to_the_engine(store: GatedStore) -> None:
    loaded = load(URI, [generate("a", prompt(20)), Pass(2), Abort("a")], store)
    assert loaded.outputs == []
    assert "warm up" in loaded.phases
    assert loaded.finish() == {}


def test_no_token_leaves_before_the_last_byte_is_there(store: GatedStore) -> None:
    loaded = load(URI, shuffled_in([generate(str(n), prompt(9 + n)) for n in range(4)], 12, seed=3), store)
    assert loaded.outputs
    assert loaded.script.at_sending == [False]


def test_a_token_that_needs_no_more_bytes_is_kept_until_all_are_there(tmp_path: Path) -> None:
    model = make_tiny("llama", vocab_size=4000)
    save_checkpoint(model, tmp_path / "model")
    _, end = tensor_spans(tmp_path / "model")["model.embed_tokens.weight"]
    ids, late = [7, 5, 19, 5, 3, 11], [2, 8, 13, 0]  # neighbours, which are read together
    with gated_store(tmp_path / "model") as store:
        # The last rows of the embedding do not come: with a head of its own nobody needs all of it.
        store.hold = lambda span: end - 40_000 <= span[1] < end
        store.let(None)
        sent: list[type] = []

        def look() -> None:
            sent.extend(type(message) for message in script.sent)
            store.hold = lambda span: False
            store.look_again()

        with caught_engine() as engines:

            def steps(count: int) -> Until:
                return Until(lambda: engines[0].scheduler.step_count >= count)

            script = Script([generate("a", ids), steps(1), generate("b", late), steps(3), Do(look)], store)
            loaded = load(URI, script, store)
    assert sent
    assert StepOutput not in sent
    first = [output.rid for output in loaded.outputs]
    assert first.count("a") > 1  # it went on meanwhile
    assert "b" in first
    answers = loaded.finish()
    assert answers["a"].tokens == theirs_greedy(model, ids, ANSWER)
    assert answers["b"].tokens == theirs_greedy(model, late, ANSWER)


def test_a_prompt_from_a_folder_is_the_warm_up_too(folder: Path) -> None:
    loaded = load(str(folder), [generate("a", prompt(20))])
    assert "warm up" not in loaded.phases
    assert loaded.finish()["a"].tokens == alone(folder, prompt(20))


def test_a_prompt_is_the_warm_up_of_random_weights_too(folder: Path) -> None:
    loaded = load(str(folder), [generate("a", prompt(20))], load_format="dummy")
    assert "warm up" not in loaded.phases
    engine, _ = start_engine(str(folder), load_format="dummy", max_total_tokens=2048)
    assert loaded.finish()["a"].tokens == ask(engine, prompt(20), ANSWER)


def test_bytes_that_turn_out_wrong_in_the_end_let_no_token_out(store: GatedStore, folder: Path) -> None:
    name = "model.safetensors"
    content = (folder / name).read_bytes()
    store.server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(
        encode_manifest({name: sums_of_file(folder / name)})
    )
    # One block covers the whole file: that it is wrong is known when its last byte has come.
    store.server.objects[f"model/{name}"] = Stored.of(content[:-1] + bytes([content[-1] ^ 1]))
    script = Script([generate("a", prompt(20)), *[Pass(1)] * 10], store)
    with pytest.raises(Corrupt):
        load(URI, script, store)
    kinds = {type(message) for message in script.sent}
    assert Accepting in kinds
    assert not kinds & {StepOutput, Ready}


# ---- behind the bytes


def test_a_layer_is_computed_when_its_own_bytes_are_there(folder: Path, store: GatedStore) -> None:
    spans = tensor_spans(folder)
    first_bytes = [
        min(start for name, (start, _) in spans.items() if name.startswith(f"model.layers.{layer}."))
        for layer in range(3)
    ]
    store.let(None)  # but what is held
    computed: list[list[bool]] = []

    with caught_engine() as engines:

        def layers() -> list[bool]:
            return [bool(keys.any()) for keys in engines[0].runner._cache.keys]

        def free_until(byte: int) -> Do:
            def act() -> None:
                store.hold = lambda span: span[0] >= byte
                store.look_again()

            return Do(act)

        def computed_at_least(count: int) -> Until:
            return Until(lambda: sum(layers()) >= count)

        events: list[Event] = [generate("a", prompt(20))]
        for count, next_byte in zip(
            (1, 2, 3), (*first_bytes[2:], spans["model.norm.weight"][0], 1 << 30), strict=True
        ):
            events.append(computed_at_least(count))
            events += [Do(lambda: computed.append(layers())), free_until(next_byte)]
        store.hold = lambda span: span[0] >= first_bytes[1]
        loaded = load(URI, events, store)
    assert computed == [[True, False, False], [True, True, False], [True, True, True]]
    assert loaded.finish()["a"].tokens == alone(folder, prompt(20))


def test_the_rows_that_a_prompt_needs_come_before_what_nobody_has_begun_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    model = make_tiny("llama", tie_word_embeddings=True, vocab_size=4000)
    save_checkpoint(model, folder)
    ids = [7, 3990, 1500, 7]
    start, end = tensor_spans(folder)["model.embed_tokens.weight"]
    row = (end - start) // 4000
    with gated_store(folder) as store:
        loaded = load(
            URI, [generate("a", ids), *[Pass(1)] * 40], store, load_config=LoadConfig(concurrency=2)
        )
        ranges = store.ranges
    wanted = [(start + at * row, start + (at + 1) * row - 1) for at in (7, 1500, 3990)]
    assert all(each in ranges for each in wanted)
    # Two connections had begun before, and each may have taken one more before it was told.
    assert max(ranges.index(each) for each in wanted) <= 7
    table = [each for each in ranges if start <= each[0] < end and each not in wanted]
    assert ranges.index(table[0]) > 20
    assert loaded.finish()["a"].tokens == theirs_greedy(model, ids, ANSWER)


def test_every_byte_is_read_once_whatever_comes_first(folder: Path, store: GatedStore) -> None:
    messages = [generate(str(n), prompt(5, seed=n)) for n in range(4)]
    load(URI, shuffled_in(messages, 8, seed=1), store, load_config=LoadConfig(concurrency=1))
    read = sorted(store.ranges)
    spans = sorted(tensor_spans(folder).values())
    assert read[0][0] == spans[0][0]
    assert read[-1][1] == spans[-1][1] - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(read))


def test_nothing_small_is_asked_for_twice(store: GatedStore) -> None:
    load(URI, [generate("a", prompt(20))], store)
    small = [
        (asked.path, asked.method) for asked in store.server.log if not asked.path.endswith(".safetensors")
    ]
    assert len(small) == len(set(small))
    heads = [asked for asked in store.server.log if asked.path.endswith(".safetensors") and asked.range]
    assert len([asked for asked in heads if asked.range is not None and asked.range[0] == 0]) == 1


def test_those_who_come_while_a_step_waits_are_computed_together(store: GatedStore) -> None:
    messages = [generate(str(n), prompt(10 + n)) for n in range(4)]
    events: list[Event] = []
    for message in messages:
        events += [Pass(1), message]
    loaded = load(URI, events, store)
    assert {output.rid for output in loaded.outputs} == {"0", "1", "2", "3"}
    assert loaded.engine.scheduler.step_count == 1


# ---- what comes of it


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES.values())
def test_the_text_is_that_of_a_complete_load(family: str, tied: bool, seed: int, tmp_path: Path) -> None:
    model = make_tiny(family, tie_word_embeddings=tied, seed=seed)
    save_checkpoint(model, tmp_path / "model", shards=1 + seed)
    prompts = {f"r{n}": random_ids(model, length, n) for n, length in enumerate((3, 150, 20, 40, 9))}
    messages: list[FrontMessage] = [generate(rid, ids) for rid, ids in prompts.items()]
    messages.insert(1 + seed, Abort("r0"))
    with gated_store(tmp_path / "model") as store:
        loaded = load(URI, shuffled_in(messages, 20, seed), store, chunked_prefill_size=64)
    answers = loaded.finish()
    assert answers.keys() == prompts.keys() - {"r0"}
    for rid, answer in answers.items():
        assert answer.tokens == theirs_greedy(model, prompts[rid], ANSWER)
        assert answer.finish_reason == "length"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored_as", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_deterministic_answers_have_the_same_bits_and_logprobs(
    stored_as: torch.dtype, dtype: str, tmp_path: Path
) -> None:
    model = in_dtype(make_tiny("qwen2"), stored_as)
    save_checkpoint(model, tmp_path / "model", shards=2)
    sampling = SamplingParams(
        max_tokens=ANSWER, temperature=0.7, seed=5, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    prompts = {f"r{n}": random_ids(model, length, n) for n, length in enumerate((3, 150, 20, 40))}
    messages = [Generate(rid, ids, sampling) for rid, ids in prompts.items()]
    options: dict[str, Any] = {
        "dtype": dtype,
        "enable_deterministic_inference": True,
        "chunked_prefill_size": 64,
    }
    whole = load(str(tmp_path / "model"), [], **options)
    expected = {}
    for message in messages:
        assert whole.engine.take(message) is None
        expected.update({k: v for k, v in whole.finish().items() if k == message.rid})
    for seed in range(3):
        with gated_store(tmp_path / "model") as store:
            loaded = load(URI, shuffled_in(messages, 20, seed), store, **options)
        assert loaded.finish() == expected


@pytest.mark.parametrize("seed", range(2))
def test_reads_that_fail_meanwhile_change_no_text(seed: int, folder: Path, store: GatedStore) -> None:
    chance, gate = random.Random(seed), store.server.usual

    def sometimes(exchange: Exchange) -> None:
        if is_weight(exchange.asked.path, exchange.span) and chance.random() < 0.3:
            chance.choice([short_body(50), reset_body(200), error(500), close_before_head])(exchange)
        else:
            gate(exchange)

    store.server.usual = sometimes
    prompts = {f"r{n}": prompt(length, seed=n) for n, length in enumerate((3, 70, 20))}
    messages = [generate(rid, ids) for rid, ids in prompts.items()]
    answers = load(URI, shuffled_in(messages, 12, seed), store).finish()
    assert {rid: answer.tokens for rid, answer in answers.items()} == {
        rid: alone(folder, ids) for rid, ids in prompts.items()
    }


def test_a_prefix_that_two_have_in_common_is_computed_once_and_right(folder: Path, store: GatedStore) -> None:
    stem = prompt(64)
    messages = [generate("a", [*stem, 5, 6]), generate("b", [*stem, 9])]
    loaded = load(URI, [messages[0], Pass(3), messages[1], Pass(3)], store)
    answers = loaded.finish()
    for message in messages:
        assert answers[message.rid].tokens == alone(folder, message.input_ids)


def test_a_prompt_that_is_only_scored_is_answered_too(folder: Path, store: GatedStore) -> None:
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=0)
    loaded = load(URI, [Generate("a", prompt(20), sampling), *[Pass(1)] * 9], store)
    (output,) = loaded.outputs
    assert output.finish_reason == "length"
    assert len(output.prompt_logprobs) == 19
    assert all(math.isfinite(each.logprob) for each in output.prompt_logprobs)


# ---- other messages


def test_what_can_never_fit_is_refused_at_once(store: GatedStore) -> None:
    loaded = load(URI, [generate("a", prompt(20), answer=5000), *[Pass(1)] * 5], store)
    (refused,) = loaded.refused
    assert (refused.rid, refused.status, refused.code) == ("a", 400, "kv_cache_too_small")
    assert "warm up" in loaded.phases


def test_more_than_may_wait_are_refused_at_once(store: GatedStore) -> None:
    messages = [generate(str(n), prompt(9, seed=n)) for n in range(4)]
    loaded = load(URI, [*messages], store, max_running_requests=1, max_queued_requests=2)
    assert [(refused.rid, refused.status, refused.code) for refused in loaded.refused] == [
        ("3", 503, "queue_full")
    ]
    assert loaded.finish().keys() == {"0", "1", "2"}


def test_the_prefix_cache_is_kept_while_somebody_waits(store: GatedStore) -> None:
    loaded = load(URI, [FlushCache(), generate("a", prompt(20)), FlushCache(), Pass(1)], store)
    flushed = [message.flushed for message in loaded.sent if isinstance(message, CacheFlushed)]
    assert flushed == [True, False]
    assert loaded.finish().keys() == {"a"}


def test_a_change_of_memory_and_all_that_comes_after_it_waits_for_the_load(store: GatedStore) -> None:
    release, later = ReleaseMemory(("kv_cache",)), generate("later", prompt(9))
    events: list[Event] = [generate("a", prompt(20)), release, later, FlushCache(), Abort("a")]
    events.append(generate("b", prompt(7)))
    loaded = load(URI, events, store)
    assert loaded.outputs == []
    assert list(loaded.engine.postponed) == [release, later, FlushCache(), generate("b", prompt(7))]
    assert not loaded.engine.scheduler.has_work


def test_stop_ends_a_load(store: GatedStore) -> None:
    with pytest.raises(Stopped):
        load(URI, [generate("a", prompt(20)), Pass(2), Stop()], store)


def test_stop_ends_a_load_for_which_nobody_waits(store: GatedStore) -> None:
    with pytest.raises(Stopped):
        load(URI, [Pass(2), Stop()], store)


def test_a_step_that_fails_ends_its_requests_and_not_the_load(store: GatedStore) -> None:
    bad = Generate("bad", [1 << 20], greedy(3))  # no row of the embedding: the front never sends this
    loaded = load(URI, [generate("a", prompt(20)), Pass(3), bad, *[Pass(1)] * 9], store)
    assert {(refused.rid, refused.status, refused.code) for refused in loaded.refused} == {
        ("a", 500, "engine_error"),
        ("bad", 500, "engine_error"),
    }
    assert any("Traceback" in message.text for message in loaded.sent if isinstance(message, LogLine))
    assert "warm up" in loaded.phases
    assert loaded.finish() == {}


# ---- a load that begins anew


@pytest.fixture
def replaced(store: GatedStore, tmp_path: Path) -> Iterator[tuple[PreTrainedModel, Do]]:
    """Another model, and the event after which it is in the store in the first one's place."""
    model = make_tiny("llama", tie_word_embeddings=True, seed=1)
    save_checkpoint(model, tmp_path / "other")
    others = objects_of(tmp_path / "other")

    def replace() -> None:
        store.server.objects = others
        store.let(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restart, "QUIET_S", (0.0001, 0.0001))
        yield model, Do(replace)


def test_requests_outlive_a_load_that_begins_anew(
    store: GatedStore, replaced: tuple[PreTrainedModel, Do]
) -> None:
    model, replace = replaced
    prompts = {rid: prompt(20, seed=number) for number, rid in enumerate("abcd")}
    messages = {rid: generate(rid, ids) for rid, ids in prompts.items()}
    events: list[Event] = [messages["a"], messages["b"], Pass(2), messages["c"], Abort("b"), Pass(2), replace]
    events += [messages["d"], Abort("c")]
    loaded = load(URI, events, store, load_config=LoadConfig(restart_on_change=True))
    kinds = [type(message) for message in loaded.others]
    assert kinds == [ModelInfo, Accepting, ModelInfo, Accepting, StepOutput, Ready]
    answers = loaded.finish()
    assert answers.keys() == {"a", "d"}
    for rid, answer in answers.items():
        assert answer.tokens == theirs_greedy(model, prompts[rid], ANSWER)


def test_a_change_under_a_prompt_ends_the_load_by_name(
    store: GatedStore, replaced: tuple[PreTrainedModel, Do]
) -> None:
    with pytest.raises(Changed):
        load(URI, [generate("a", prompt(20)), Pass(3), replaced[1]], store)


# ---- memory of a device of its own


def test_where_torch_has_to_be_asked_for_the_device_the_first_bytes_do_not_wait(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []

    def ask_torch(options: EngineOptions) -> str:
        with store.server_asked:
            assert store.server_asked.wait_for(lambda: len(store.ranges) > 0, timeout=90)
        asked_for.append(len(store.ranges))
        return "cpu"

    monkeypatch.setattr(begun, "plain_device", lambda options: None)
    monkeypatch.setattr(begun, "choose_device", ask_torch)
    loaded = load(URI, [generate("a", prompt(20))], store)
    assert asked_for
    assert Accepting(2048) in loaded.sent
    assert len(loaded.finish()["a"].tokens) == ANSWER


def test_a_device_that_is_not_there_ends_the_transfer(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "plain_device", lambda options: None)

    def ask_torch(options: EngineOptions) -> str:
        raise BadDevice("None.", remedy="Another.")

    monkeypatch.setattr(begun, "choose_device", ask_torch)
    with pytest.raises(BadDevice):
        load(URI, [], store)
    for thread in threading.enumerate():
        if thread.name.startswith(("fetch", "progress")):
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_where_a_device_has_memory_of_its_own_a_group_is_copied_when_it_is_there(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny("llama", tie_word_embeddings=tied)
    save_checkpoint(model, tmp_path / "model")
    monkeypatch.setattr(startup, "is_apart", lambda device: True)
    ids = random_ids(model, 40, seed=2)
    with gated_store(tmp_path / "model") as store:
        loaded = load(URI, shuffled_in([generate("a", ids), generate("b", ids[:9])], 20, seed=1), store)
    assert "copy to device" in loaded.phases
    answers = loaded.finish()
    assert answers["a"].tokens == theirs_greedy(model, ids, ANSWER)
    assert answers["b"].tokens == theirs_greedy(model, ids[:9], ANSWER)
    copied, tensors = loaded.engine.runner.model.parameters, checkpoint_tensors(model)
    assert torch.equal(copied.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(copied.norm, tensors["model.norm.weight"])
