"""A real engine process that is asked while it loads: before torch is there, until the last byte, and to its end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from headrace.ipc.messages import Abort, Accepting, LoadFailed, Ready, StepOutput, Stop, TokenOutput
from tests.engine.engine_process import running_engine, tokens, until_ready
from tests.engine.held_loads import URI, GatedStore, gated_store
from tests.models.harness import theirs_greedy
from tests.tiny_models import make_tiny, random_ids, save_checkpoint

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_tiny("qwen2", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_checkpoint(model, path, shards=2)
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[GatedStore]:
    with gated_store(folder) as running:
        yield running


def test_requests_that_come_before_torch_are_answered_after_the_last_byte_and_before_ready(
    store: GatedStore, model: PreTrainedModel, tmp_path: Path
) -> None:
    prompts = {"a": random_ids(model, 30, seed=1), "b": random_ids(model, 7, seed=2)}
    with running_engine(tmp_path, URI, max_total_tokens=512) as engine:
        engine.receive_until(Accepting)
        for rid, prompt in prompts.items():
            engine.generate(rid, prompt, 5)
        engine.generate("gone", random_ids(model, 50, seed=3), 5)
        engine.send(Abort("gone"))
        store.let(None)
        before, ready = until_ready(engine)
        outputs: dict[str, list[TokenOutput]] = {rid: [] for rid in prompts}
        for message in before:
            for output in message.outputs if isinstance(message, StepOutput) else ():
                outputs[output.rid].append(output)
        assert all(outputs.values())
        for rid in prompts:
            while outputs[rid][-1].finish_reason is None:
                for output in engine.receive_until(StepOutput)[1].outputs:
                    outputs[output.rid].append(output)
            assert tokens(outputs[rid]) == theirs_greedy(model, prompts[rid], 5)
    phases = {phase.name: phase for phase in ready.phases}
    assert "warm up" not in phases
    assert phases["transfer"].start_s <= phases["import torch"].start_s
    assert phases["first prompt"].start_s >= phases["build model"].end_s


def test_every_part_of_a_start_has_a_name(store: GatedStore, tmp_path: Path) -> None:
    store.let(None)
    with running_engine(tmp_path, URI, max_total_tokens=512) as engine:
        _, ready = until_ready(engine)
    named = at = 0.0
    for phase in ready.phases:  # by start
        named += max(0.0, phase.end_s - max(at, phase.start_s))
        at = max(at, phase.end_s)
    assert named >= 0.9 * at


def test_the_first_weights_are_asked_for_before_torch_is_there(
    store: GatedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A torch that is never done being imported: what happens all the same does not need it.
    slow = tmp_path / "slow" / "torch"
    slow.mkdir(parents=True)
    os.mkfifo(slow / "never")
    (slow / "__init__.py").write_text(f"open({str(slow / 'never')!r}).read()\n")
    monkeypatch.setenv("PYTHONPATH", str(slow.parent))
    store.let(None)
    with running_engine(tmp_path, URI, max_total_tokens=512) as engine:
        engine.receive_until(Accepting)
        with store.server_asked:
            assert store.server_asked.wait_for(lambda: len(store.ranges) > 0, timeout=90)


def test_stop_ends_the_process_with_0_while_it_loads(store: GatedStore, tmp_path: Path) -> None:
    with running_engine(tmp_path, URI) as engine:
        engine.receive_until(Accepting)
        engine.generate("a", [5, 6, 7], 5)
        engine.send(Stop())
        assert engine.wait() == 0
        assert "Traceback" not in engine.errors()


def test_a_load_that_fails_is_told_and_nothing_is_answered(
    store: GatedStore, folder: Path, tmp_path: Path
) -> None:
    with running_engine(tmp_path, URI) as engine:
        engine.receive_until(Accepting)
        engine.generate("a", [5, 6, 7], 5)
        name = "model/model-00002-of-00002.safetensors"
        stored = store.server.objects[name]
        store.server.objects[name] = stored.of(stored.data + b"x")
        store.let(None)
        before, failed = engine.receive_until(LoadFailed)
        assert failed.error == "Changed"
        assert not [message for message in before if isinstance(message, StepOutput | Ready)]
        assert engine.wait() == 1


def test_an_engine_that_is_aborted_leaves_where_its_threads_were(store: GatedStore, tmp_path: Path) -> None:
    with running_engine(tmp_path, URI) as engine:
        engine.receive_until(Accepting)
        engine.process.send_signal(signal.SIGABRT)
        assert engine.wait() == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in engine.errors()
        assert engine.errors().count("Thread 0x") > 2
