"""The engine process over its channel: the start's messages, requests that come and go, and its end."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest
from transformers import PreTrainedModel

from headrace.ipc.messages import Abort, Accepting, LoadProgress, LogLine, ModelInfo, RequestFailed, Stop
from tests.engine.engine_process import EngineProcess, running_engine, tokens, until_ready
from tests.models.harness import theirs_greedy
from tests.tiny_models import make_tiny, random_ids, save_checkpoint

POOL = 512
_rids = (f"r{number}" for number in count())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_tiny("qwen2")


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_checkpoint(model, path, shards=2)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A ready engine, whose prompts are computed in small chunks; a test leaves it idle."""
    errors = tmp_path_factory.mktemp("engine")
    with running_engine(errors, str(folder), chunked_prefill_size=2, max_total_tokens=POOL) as process:
        until_ready(process)
        yield process


def assert_all_pages_are_free(engine: EngineProcess) -> None:
    """A request that takes the whole pool can only run when nobody else holds a page."""
    rid = next(_rids)
    engine.generate(rid, [5] * (POOL - 2), 2)
    assert len(tokens(engine.tokens_until(rid)[rid])) == 2


def test_the_start_tells_its_progress_the_model_and_at_last_that_it_is_ready(
    model: PreTrainedModel, folder: Path, tmp_path: Path
) -> None:
    with running_engine(tmp_path, str(folder), max_total_tokens=POOL) as process:
        before, ready = until_ready(process)
    assert isinstance(before[0], LoadProgress)
    assert before[0].phase == "listing"
    kinds = [type(message) for message in before if not isinstance(message, LoadProgress)]
    assert kinds == [ModelInfo, LogLine, Accepting]
    assert LogLine("info", ready.memory) in before  # the memory plan, before the bytes
    assert ready.memory.startswith("Memory on the CPU: ")
    assert Accepting(POOL) in before
    (info,) = (message for message in before if isinstance(message, ModelInfo))
    assert (info.context_length, info.vocab_size) == (512, model.config.vocab_size)
    assert info.eos_token_ids == (0, 2)
    assert info.tokenizer_files.keys() == {"tokenizer.json", "tokenizer_config.json"}
    assert ready.max_total_tokens == POOL
    assert ready.bytes_streamed == sum(parameter.nbytes for parameter in model.parameters())
    assert ready.weights_bytes >= ready.bytes_streamed
    config = model.config
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    assert ready.kv_cache_bytes == POOL * 2 * config.num_hidden_layers * heads * model.dtype.itemsize
    last = [message for message in before if isinstance(message, LoadProgress)][-1]
    assert last.bytes_done == last.bytes_total == ready.bytes_streamed
    assert {"list", "import torch", "transfer", "warm up"} <= {phase.name for phase in ready.phases}


def test_requests_that_join_at_different_times_get_the_tokens_that_each_gets_alone(
    engine: EngineProcess, model: PreTrainedModel
) -> None:
    prompts = {next(_rids): random_ids(model, length, seed=length) for length in (30, 9, 17)}
    first, second, third = prompts
    engine.generate(first, prompts[first], 40)
    outputs = engine.tokens_until(first, count=5)
    engine.generate(second, prompts[second], 10)
    engine.generate(third, prompts[third], 60)
    for rid, more in engine.tokens_until(third).items():
        outputs.setdefault(rid, []).extend(more)
    for rid, prompt in prompts.items():
        answer = tokens(outputs[rid])
        assert answer == theirs_greedy(model, prompt, len(answer))
        assert outputs[rid][-1].finish_reason == "length"
    assert [len(tokens(outputs[rid])) for rid in prompts] == [40, 10, 60]


def test_an_aborted_request_that_waits_is_forgotten(engine: EngineProcess) -> None:
    runs, waits = next(_rids), next(_rids)
    engine.generate(runs, [5] * 10, POOL - 10)
    engine.tokens_until(runs, count=1)
    engine.generate(waits, [6] * 10, 10)
    engine.send(Abort(waits))
    engine.send(Abort(runs))
    assert_all_pages_are_free(engine)


def test_a_request_that_is_aborted_while_its_prompt_is_computed_frees_its_pages(
    engine: EngineProcess,
) -> None:
    clock, slow = next(_rids), next(_rids)
    engine.generate(clock, [5] * 4, 140)
    engine.tokens_until(clock, count=1)
    engine.generate(slow, [6] * 340, 12)  # 170 steps of two tokens
    engine.tokens_until(clock, count=10)
    engine.send(Abort(slow))
    engine.tokens_until(clock)
    assert_all_pages_are_free(engine)


def test_a_request_that_is_aborted_while_it_answers_frees_its_pages(engine: EngineProcess) -> None:
    rid = next(_rids)
    engine.generate(rid, [5] * 4, POOL - 4)
    engine.tokens_until(rid, count=3)
    engine.send(Abort(rid))
    assert_all_pages_are_free(engine)


def test_a_request_that_the_pool_can_never_hold_is_refused_with_numbers(engine: EngineProcess) -> None:
    rid = next(_rids)
    engine.generate(rid, [5] * 400, 200)
    _, failed = engine.receive_until(RequestFailed)
    assert (failed.rid, failed.status, failed.code) == (rid, 400, "kv_cache_too_small")
    for fact in (
        "600 tokens",
        "400 of prompt",
        "200 of answer",
        "holds 512",
        "--mem-fraction-static",
        "--max-total-tokens",
    ):
        assert fact in failed.message
    assert_all_pages_are_free(engine)


def test_an_idle_engine_uses_no_processor_time(engine: EngineProcess) -> None:
    process = psutil.Process(engine.process.pid)
    before = process.cpu_times()
    assert engine.receive(timeout_s=1.5) is None
    after = process.cpu_times()
    # A loop that polls would take most of it; the kernel counts in hundredths.
    assert (after.user + after.system) - (before.user + before.system) <= 0.05


def test_stop_ends_the_process_with_0_and_drops_what_runs(folder: Path, tmp_path: Path) -> None:
    with running_engine(tmp_path, str(folder)) as process:
        until_ready(process)
        process.generate("r", [5] * 4, 400)
        process.tokens_until("r", count=1)
        process.send(Stop())
        assert process.wait() == 0
        assert "Traceback" not in process.errors()


def test_the_end_of_its_input_ends_the_process(folder: Path, tmp_path: Path) -> None:
    with running_engine(tmp_path, str(folder)) as process:
        until_ready(process)
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert process.wait() == 0


def test_the_end_of_its_input_ends_the_process_while_it_loads(folder: Path, tmp_path: Path) -> None:
    with running_engine(tmp_path, str(folder)) as process:
        process.receive_until(ModelInfo)
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert process.wait() == 0


def test_a_step_that_fails_is_told_to_every_request_before_the_process_ends(
    folder: Path, tmp_path: Path
) -> None:
    with running_engine(tmp_path, str(folder), skip_server_warmup=True) as process:
        until_ready(process)
        process.generate("good", [5] * 4, 400)
        process.tokens_until("good", count=1)
        process.generate("bad", [1 << 20], 4)  # no row of the embedding: the front never sends this
        failures = [process.receive_until(RequestFailed)[1] for _ in range(2)]
        assert {failure.rid for failure in failures} == {"good", "bad"}
        assert {(failure.status, failure.code) for failure in failures} == {(500, "engine_error")}
        assert process.receive_until(LogLine)[1].text.startswith("Traceback")
        assert process.wait() == 1
        assert "Traceback" not in process.errors()
