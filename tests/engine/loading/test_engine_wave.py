"""Long prompts and many of them while the model loads: all of them follow the bytes, piece by piece."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine.engine import Engine
from headrace.engine.runner import Begun, Runner
from headrace.engine.scheduling.pieces import Piece
from headrace.ipc.messages import Abort, FrontMessage, Generate, SamplingParams
from headrace.models.registry import FAMILIES
from tests.engine.harness import greedy
from tests.engine.held_loads import (
    URI,
    Do,
    Event,
    GatedStore,
    Loaded,
    Pass,
    Until,
    caught_engine,
    gated_store,
    load,
    shuffled_in,
    tensor_spans,
)
from tests.models.harness import theirs_greedy
from tests.tiny_models import in_dtype, make_tiny, random_ids, save_checkpoint

ANSWER, CHUNK = 4, 16
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_checkpoint(make_tiny("llama"), path)
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[GatedStore]:
    with gated_store(folder) as running:
        yield running


def prompt(length: int, seed: int = 1) -> list[int]:
    return random_ids(make_tiny("llama"), length, seed)


def generate(rid: str, ids: list[int]) -> Generate:
    return Generate(rid, ids, greedy(ANSWER))


def assert_answers(loaded: Loaded, prompts: dict[str, list[int]]) -> None:
    model = make_tiny("llama")
    answers = loaded.finish()
    assert answers.keys() == prompts.keys()
    for rid, ids in prompts.items():
        assert answers[rid].tokens == theirs_greedy(model, ids, ANSWER), rid


@contextmanager
def begun_pieces() -> Iterator[list[list[tuple[str, int, int]]]]:
    """What has begun to be computed, piece by piece: of which request, and of which of its tokens."""
    begun: list[list[tuple[str, int, int]]] = []
    usual = Runner.begin

    def begin(runner: Runner, piece: Piece) -> Begun:
        begun.append([(request.rid, start, end) for request, start, end in piece.prefills()])
        return usual(runner, piece)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "begin", begin)
        yield begun


class Held:
    """A load of which the last layers' bytes are held; counts the tokens whose keys each layer has."""

    def __init__(self, store: GatedStore, folder: Path, engines: list[Engine]) -> None:
        self._store, self._engines = store, engines
        self._spans = tensor_spans(folder)
        store.let(None)  # but what is held
        self.hold_from_layer(1)

    def hold_from_layer(self, layer: int) -> None:
        """Layers from this one on do not come; 3 is the head."""
        first = min(
            start
            for name, (start, _) in self._spans.items()
            if name.startswith("model.norm." if layer == 3 else f"model.layers.{layer}.")
        )
        self._store.hold = lambda span: span[0] >= first
        self._store.look_again()

    def all(self) -> None:
        self._store.hold = lambda span: False
        self._store.look_again()

    def written(self) -> list[int]:
        """Slots with keys in them, by layer."""
        return [int(keys.flatten(1).any(1).sum()) for keys in self._engines[0].runner._cache.keys]

    def until_written(self, *counts: int) -> Until:
        return Until(lambda: self.written() == list(counts))


def test_all_of_a_long_prompt_goes_through_a_layer_when_that_is_there(
    folder: Path, store: GatedStore
) -> None:
    ids = prompt(150)
    with caught_engine() as engines:
        held = Held(store, folder, engines)
        loaded = load(
            URI,
            [
                generate("a", ids),
                held.until_written(150, 0, 0),
                Do(lambda: held.hold_from_layer(2)),
                held.until_written(150, 150, 0),
                Do(lambda: held.hold_from_layer(3)),
                held.until_written(150, 150, 150),
                Do(held.all),
            ],
            store,
            chunked_prefill_size=CHUNK,
        )
    assert [output.rid for output in loaded.outputs] == ["a"]
    assert_answers(loaded, {"a": ids})


def test_no_piece_is_longer_than_a_step_of_the_loaded_model(folder: Path, store: GatedStore) -> None:
    with begun_pieces() as begun, caught_engine() as engines:
        held = Held(store, folder, engines)
        events: list[Event] = [generate("a", prompt(70)), held.until_written(70, 0, 0), Do(held.all)]
        load(URI, events, store, chunked_prefill_size=CHUNK)
    assert begun == [[("a", start, min(start + CHUNK, 70))] for start in range(0, 70, CHUNK)]


def test_a_burst_of_long_prompts_has_all_its_first_tokens_with_the_last_byte(
    folder: Path, store: GatedStore
) -> None:
    prompts = {f"r{n}": prompt(40 + 9 * n, seed=n) for n in range(5)}
    total = sum(map(len, prompts.values()))
    with caught_engine() as engines:
        held = Held(store, folder, engines)
        events: list[Event] = [generate(rid, ids) for rid, ids in prompts.items()]
        events += [held.until_written(total, 0, 0), Do(held.all)]
        loaded = load(URI, events, store, chunked_prefill_size=CHUNK)
    assert [output.rid for output in loaded.outputs] == list(prompts)
    assert_answers(loaded, prompts)


def test_where_there_are_no_bytes_to_wait_for_nobody_waits_for_those_who_came_later(folder: Path) -> None:
    events = [generate("a", prompt(40)), generate("b", prompt(40, seed=2))]
    loaded = load(str(folder), events, load_format="dummy", chunked_prefill_size=CHUNK)
    assert [output.rid for output in loaded.outputs] == ["a"]


def test_more_than_max_prefill_tokens_are_not_under_way_at_once(folder: Path, store: GatedStore) -> None:
    ids = prompt(150)
    with begun_pieces() as begun, caught_engine() as engines:
        held = Held(store, folder, engines)
        events: list[Event] = [generate("a", ids), held.until_written(40, 0, 0), Pass(1), Pass(1)]
        events += [Do(lambda: seen.extend(begun)), Do(held.all)]
        seen: list[list[tuple[str, int, int]]] = []
        loaded = load(URI, events, store, chunked_prefill_size=CHUNK, max_prefill_tokens=40)
    assert seen == [[("a", 0, 16)], [("a", 16, 32)], [("a", 32, 40)]]
    assert_answers(loaded, {"a": ids})


def test_who_comes_late_does_not_make_what_is_far_begin_anew(folder: Path, store: GatedStore) -> None:
    first, late = prompt(40), prompt(20, seed=2)
    with begun_pieces() as begun, caught_engine() as engines:
        held = Held(store, folder, engines)
        held.hold_from_layer(2)
        loaded = load(
            URI,
            [
                generate("a", first),
                held.until_written(40, 40, 0),
                generate("b", late),
                held.until_written(60, 60, 0),
                Do(held.all),
            ],
            store,
            chunked_prefill_size=CHUNK,
        )
    assert begun == [
        *([("a", start, min(start + CHUNK, 40))] for start in range(0, 40, CHUNK)),
        [("b", 0, CHUNK)],
        [("b", CHUNK, 20)],
    ]
    assert_answers(loaded, {"a": first, "b": late})


def test_who_comes_early_shares_the_last_piece_and_only_that_begins_anew(
    folder: Path, store: GatedStore
) -> None:
    first, late = prompt(40), prompt(20, seed=2)
    with begun_pieces() as begun, caught_engine() as engines:
        held = Held(store, folder, engines)
        loaded = load(
            URI,
            [
                generate("a", first),
                held.until_written(40, 0, 0),
                generate("b", late),
                held.until_written(60, 0, 0),
                Do(held.all),
            ],
            store,
            chunked_prefill_size=CHUNK,
        )
    assert begun[3:] == [[("a", 32, 40), ("b", 0, 8)], [("b", 8, 20)]]
    assert_answers(loaded, {"a": first, "b": late})


@pytest.mark.parametrize("gone", ["r0", "r1", "r2"])
def test_who_goes_meanwhile_leaves_the_others_their_text_and_pages(
    gone: str, folder: Path, store: GatedStore
) -> None:
    prompts = {f"r{n}": prompt(40 + 9 * n, seed=n) for n in range(3)}
    total = sum(map(len, prompts.values()))
    late = prompt(50, seed=7)  # takes the pages of who has gone
    with caught_engine() as engines:
        held = Held(store, folder, engines)
        events: list[Event] = [generate(rid, ids) for rid, ids in prompts.items()]
        events += [held.until_written(total, 0, 0), Do(lambda: held.hold_from_layer(2))]
        events += [held.until_written(total, total, 0), Abort(gone), generate("late", late), *[Pass(1)] * 5]
        events += [Do(held.all)]
        # The pool has room for no more than these.
        loaded = load(URI, events, store, chunked_prefill_size=CHUNK, max_total_tokens=192)
    assert_answers(loaded, {**{k: v for k, v in prompts.items() if k != gone}, "late": late})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES.values())
def test_the_text_of_prompts_of_many_pieces_is_that_of_a_complete_load(
    family: str, tied: bool, seed: int, tmp_path: Path
) -> None:
    model = make_tiny(family, tie_word_embeddings=tied, seed=seed)
    save_checkpoint(model, tmp_path / "model")
    lengths = random.Random(seed).sample(range(20, 220), 5)
    prompts = {f"r{n}": random_ids(model, length, n) for n, length in enumerate(lengths)}
    messages: list[FrontMessage] = [generate(rid, ids) for rid, ids in prompts.items()]
    messages.insert(3 + seed % 2, Abort(f"r{seed}"))
    with gated_store(tmp_path / "model") as store:
        loaded = load(URI, shuffled_in(messages, 20, seed), store, chunked_prefill_size=CHUNK)
    answers = loaded.finish()
    assert answers.keys() == prompts.keys() - {f"r{seed}"}
    for rid, answer in answers.items():
        assert answer.tokens == theirs_greedy(model, prompts[rid], ANSWER), rid


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_deterministic_answers_to_prompts_of_many_pieces_have_the_same_bits(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = in_dtype(make_tiny("qwen2"), dtype)
    save_checkpoint(model, tmp_path / "model")
    sampling = SamplingParams(max_tokens=ANSWER, temperature=0.7, seed=5, ignore_eos=True, logprobs=3)
    prompts = {f"r{n}": random_ids(model, length, n) for n, length in enumerate((150, 7, 90))}
    messages = [Generate(rid, ids, sampling) for rid, ids in prompts.items()]
    options: dict[str, Any] = {"enable_deterministic_inference": True, "chunked_prefill_size": CHUNK}
    whole = load(str(tmp_path / "model"), [], **{**options, "chunked_prefill_size": 512})
    for message in messages:
        assert whole.engine.take(message) is None
    expected = whole.finish()
    for seed in range(2):
        with gated_store(tmp_path / "model") as store:
            loaded = load(URI, shuffled_in(messages, 20, seed), store, **options)
        assert loaded.finish() == expected
