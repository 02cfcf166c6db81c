"""--enable-deterministic-inference: an answer and its logprobs have the same bits alone and in any company."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from headrace.engine.engine import Engine
from headrace.ipc.messages import Abort, Generate, SamplingParams, TokenLogprob
from tests.engine.harness import start_engine, tokens_of
from tests.tiny_models import VOCAB_SIZE, make_tiny, save_checkpoint

FAMILIES = ("llama", "qwen2", "mistral", "qwen3")
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=3)
POOL_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that joins before step `joins` and, unless it has ended, is cancelled before step `leaves`."""

    prompt: list[int]
    sampling: SamplingParams = GREEDY
    joins: int = 0
    leaves: int | None = None


@dataclass(slots=True)
class Answer:
    """What came of it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: str | None = None


def serve(engine: Engine, asks: Sequence[Ask]) -> list[Answer]:
    """Play the requests step by step; the pool is empty again afterwards."""
    answers = [Answer() for _ in asks]
    step = 0
    last = max(max(ask.joins, ask.leaves or 0) for ask in asks)
    while step <= last or engine.scheduler.has_work:
        for number, ask in enumerate(asks):
            if ask.joins == step:
                assert engine.take(Generate(str(number), ask.prompt, ask.sampling)) is None
            if ask.leaves == step:
                engine.take(Abort(str(number)))
        if engine.scheduler.has_work:
            for output in tokens_of(engine.step()):
                answer = answers[int(output.rid)]
                answer.tokens += output.token_ids
                answer.logprobs += output.logprobs or ()
                answer.cached_tokens += output.cached_tokens
                answer.finish_reason = output.finish_reason
        step += 1
    return answers


def assert_empty(engine: Engine) -> None:
    assert engine.scheduler.flush_cache()
    assert engine.scheduler.pool.free_count == engine.scheduler.pool.page_count


def serve_each_alone(engine: Engine, asks: Sequence[Ask]) -> list[Answer]:
    answers: list[Answer] = []
    for ask in asks:
        answers += serve(engine, [replace(ask, joins=0, leaves=None)])
        assert_empty(engine)
    return answers


def is_said_by(part: Answer, whole: Answer) -> bool:
    """Whether one answer is the other's beginning, logprobs included."""
    count = len(part.tokens)
    return part.tokens == whole.tokens[:count] and part.logprobs == whole.logprobs[: len(part.logprobs)]


def some_tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(VOCAB_SIZE) for _ in range(count)]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("deterministic")
    save_checkpoint(make_tiny(request.param), path)
    return str(path)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    chance = random.Random(0)
    common = some_tokens(chance, 70)
    return [
        Ask(common + some_tokens(chance, 20)),
        Ask(some_tokens(chance, 150), joins=1),
        Ask(common + some_tokens(chance, 5), joins=3),
        Ask(some_tokens(chance, 3), joins=4),
        Ask(common + some_tokens(chance, 33), joins=9),
    ]


def started(folder: str, dtype: str, **options: object) -> Engine:
    options = {"max_total_tokens": POOL_TOKENS, "enable_deterministic_inference": True, **options}
    return start_engine(folder, dtype=dtype, skip_server_warmup=True, **options)[0]


@pytest.fixture(scope="module")
def alone(folder: str, dtype: str, asks: list[Ask]) -> list[Answer]:
    """Each answered by itself, its prompt computed at once."""
    return serve_each_alone(started(folder, dtype, disable_radix_cache=True), asks)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_neighbours_chunks_and_cache_hits_change_no_bit(
    folder: str, dtype: str, asks: list[Ask], alone: list[Answer], chunk: int
) -> None:
    engine = started(folder, dtype, chunked_prefill_size=chunk)
    together = serve(engine, asks)
    assert sum(answer.cached_tokens for answer in together) >= 64
    again = serve(engine, asks)
    assert all(answer.cached_tokens >= 64 for answer in again if answer is not again[3])
    for answers in (together, again):
        for answer, expected in zip(answers, alone, strict=True):
            assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
    assert_empty(engine)


def test_retraction_changes_no_bit(folder: str, dtype: str, asks: list[Ask], alone: list[Answer]) -> None:
    # Room for three of them until they have said a few tokens.
    engine = started(folder, dtype, max_total_tokens=224, disable_radix_cache=True)
    answers = serve(engine, [replace(ask, joins=0) for ask in asks[2:] + asks[:2]])
    assert engine.scheduler.retraction_count > 0
    for answer, expected in zip(answers, alone[2:] + alone[:2], strict=True):
        assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
    assert_empty(engine)


def crowd(seed: int) -> list[Ask]:
    """64 requests of mixed lengths, options and times of arrival, a third of them cancelled at some time."""
    chance = random.Random(seed)
    beginnings = [some_tokens(chance, chance.randint(16, 100)) for _ in range(4)]
    asks: list[Ask] = []
    for number in range(64):
        prompt = some_tokens(chance, chance.choice([1, 2, 5, 17, 40, 120]))
        if chance.random() < 0.4:
            prompt = chance.choice(beginnings) + prompt
        is_drawn, is_penalized = chance.random() < 0.5, chance.random() < 0.3
        sampling = SamplingParams(
            max_tokens=chance.randint(1, 24),
            temperature=chance.choice([0.7, 1.0, 1.5]) if is_drawn else 0.0,
            seed=chance.randrange(1 << 32) if is_drawn else None,
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([-1, 20]),
            min_p=chance.choice([0.0, 0.05]),
            repetition_penalty=1.3 if is_penalized else 1.0,
            frequency_penalty=0.4 if is_penalized else 0.0,
            presence_penalty=0.2 if is_penalized else 0.0,
            min_tokens=chance.choice([0, 0, 1]),
            ignore_eos=chance.random() < 0.5,
            logprobs=chance.choice([None, 0, 4]),
        )
        joins = chance.randrange(40)
        leaves = joins + chance.randrange(30) if number % 3 == 0 else None
        asks.append(Ask(prompt, sampling, joins, leaves))
    return asks


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))]
)
def test_a_crowd_is_answered_as_each_would_be_alone(seed: int, tmp_path: Path) -> None:
    save_checkpoint(make_tiny(FAMILIES[seed % 4], seed=seed), tmp_path)
    dtype = "bfloat16" if seed % 2 else "float32"
    asks = crowd(seed)
    expected = serve_each_alone(started(str(tmp_path), dtype, disable_radix_cache=True), asks)
    # Too little room for all that run: they wait for pages, and in many of these crowds some are retracted.
    engine = started(
        str(tmp_path), dtype, max_total_tokens=512, max_running_requests=24, chunked_prefill_size=100
    )
    answers = serve(engine, asks)
    assert any(answer.finish_reason is None for answer in answers)
    for answer, ask, whole in zip(answers, asks, expected, strict=True):
        if ask.leaves is None or answer.finish_reason is not None:
            assert answer.finish_reason == whole.finish_reason
            assert (answer.tokens, answer.logprobs) == (whole.tokens, whole.logprobs)
        else:
            assert is_said_by(answer, whole)
    assert_empty(engine)


def test_the_real_model_says_the_same_in_company(smollm2_folder: Path, dtype: str) -> None:
    chance = random.Random(1)
    common = [chance.randrange(49152) for _ in range(40)]
    sampling = msgspec.structs.replace(GREEDY, max_tokens=6)
    asks = [
        Ask([*common, *(chance.randrange(49152) for _ in range(count))], sampling, joins)
        for count, joins in ((1, 0), (130, 1), (9, 2))
    ]
    engine = started(str(smollm2_folder), dtype)
    expected = serve_each_alone(engine, asks)
    for answer, whole in zip(serve(engine, asks), expected, strict=True):
        assert (answer.tokens, answer.logprobs) == (whole.tokens, whole.logprobs)
    assert_empty(engine)


@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", 0.25), ("float32", 1e-3)])
def test_without_the_flag_answers_part_at_near_ties_only(folder: str, dtype: str, near: float) -> None:
    # The largest logits are between 8 and 16, where bfloat16 has steps of 0.0625; the median gap is about 1.
    chance = random.Random(0)
    sampling = msgspec.structs.replace(GREEDY, logprobs=2)
    asks = [
        Ask(some_tokens(chance, chance.randint(1, 120)), sampling, chance.randrange(10)) for _ in range(24)
    ]
    engine = started(folder, dtype, enable_deterministic_inference=False, max_running_requests=24)
    together = serve(engine, asks)
    assert_empty(engine)
    for answer, alone in zip(together, serve_each_alone(engine, asks), strict=True):
        pairs = zip(answer.tokens, alone.tokens, strict=True)
        parting = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if parting is not None:
            (_, best), (_, second) = alone.logprobs[parting].top
            assert best - second <= near
