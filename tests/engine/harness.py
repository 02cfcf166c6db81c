"""A real engine in this process: started from a URI or a folder, fed with messages between its steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors import safe_open

from headrace.engine.engine import Engine
from headrace.engine.scheduling.request import Request
from headrace.engine.startup import start
from headrace.ipc.messages import (
    Abort,
    EngineMessage,
    FrontMessage,
    Generate,
    SamplingParams,
    StepOutput,
    TokenOutput,
)
from headrace.ipc.options import EngineOptions, LoadConfig
from headrace.ipc.timeline import Timeline
from headrace.models.decoder.parameters import DecoderParameters, arrange
from headrace.models.registry import layout_of, read_config
from tests.tiny_models import fill


def greedy(answer: int) -> SamplingParams:
    """`answer` tokens, each the likeliest, also over an end of sequence."""
    return SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)


class Silent:
    """A channel on which nothing comes; keeps what is sent."""

    def __init__(self, sent: list[EngineMessage]) -> None:
        self._sent = sent

    def send(self, message: EngineMessage) -> None:
        self._sent.append(message)

    def receive(self, timeout_s: float | None) -> FrontMessage | None:
        assert timeout_s == 0, "nothing would ever come"
        return None


def start_engine(
    model: str, *, concurrency: int | None = None, **options: Any
) -> tuple[Engine, list[EngineMessage]]:
    """A warm engine on the CPU, and what it sent while it started.

    torch computes on one thread: on busy cores its threads wait for each other longer than they compute.
    """
    sent: list[EngineMessage] = []
    options = {"device": "cpu", "mem_fraction_static": 0.5, "max_running_requests": 8, **options}
    load_config = LoadConfig(concurrency=concurrency)
    engine = start(
        EngineOptions(model=model, load_config=load_config, **options),
        Silent(sent),
        Timeline(time.monotonic()),
    )
    torch.set_num_threads(1)
    return engine, sent


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables in os.environ."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that joins before step `joins` and, unless it has ended, leaves before step `leaves`."""

    prompt: Sequence[int]
    answer: int
    joins: int = 0
    leaves: int | None = None


def play(engine: Engine, visits: Sequence[Visit]) -> list[list[int]]:
    """The greedy tokens of each visit; the pool is empty again afterwards."""
    answers: list[list[int]] = [[] for _ in visits]
    step = 0
    last = max(max(visit.joins, visit.leaves or 0) for visit in visits)
    while step <= last or engine.scheduler.has_work:
        for number, visit in enumerate(visits):
            if visit.joins == step:
                asked = Generate(str(number), list(visit.prompt), greedy(visit.answer))
                assert engine.take(asked) is None
            if visit.leaves == step:
                engine.take(Abort(str(number)))
        if engine.scheduler.has_work:
            for output in tokens_of(engine.step()):
                answers[int(output.rid)] += output.token_ids
        step += 1
    assert engine.scheduler.flush_cache()
    assert engine.scheduler.pool.free_count == engine.scheduler.pool.page_count
    return answers


def tokens_of(answers: Sequence[EngineMessage]) -> list[TokenOutput]:
    """The tokens of a step, in which nothing else may have happened."""
    assert all(isinstance(answer, StepOutput) for answer in answers), answers
    return [output for answer in answers if isinstance(answer, StepOutput) for output in answer.outputs]


def ask(engine: Engine, prompt: Sequence[int], answer: int) -> list[int]:
    """The greedy tokens of one request alone."""
    return play(engine, [Visit(prompt, answer)])[0]


def forced_logits(engine: Engine, cases: Sequence[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """For each prompt and answer, computed together: the logits from which each token of the answer would be
    chosen, given those before it, [answer, vocab]."""
    for number, (prompt, answer) in enumerate(cases):
        engine.scheduler.add(Request(str(number), prompt, greedy(len(answer))))
    rows: list[list[torch.Tensor]] = [[] for _ in cases]
    while engine.scheduler.has_work:
        step = engine.scheduler.plan(engine.options.chunked_prefill_size)
        sampled = [(int(request.rid), len(request.output)) for request in step.sampled()]
        for (number, _), row in zip(sampled, engine.runner.run(step).sampled, strict=True):
            rows[number].append(row)
        engine.scheduler.commit(step, [cases[number][1][place] for number, place in sampled], frozenset())
    for number in range(len(cases)):
        engine.runner.forget(str(number))
    assert engine.scheduler.flush_cache()
    return [torch.stack(each) for each in rows]


def expected_parameters(
    config: dict[str, Any], files: Sequence[str], dtype: torch.dtype
) -> DecoderParameters:
    """The parameters that safetensors' own reader and torch.cat make of these files."""
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as shard:
            tensors |= {name: shard.get_tensor(name).to(dtype) for name in shard.keys()}  # noqa: SIM118
    return arrange(read_config(config), fill(layout_of(config), tensors))


def named_tensors(parameters: DecoderParameters) -> dict[str, torch.Tensor]:
    """Every parameter of a model by a name; a tied head is there twice."""
    found = {"embedding": parameters.embedding, "norm": parameters.norm, "head": parameters.head}
    for number, layer in enumerate(parameters.layers):
        found[f"{number}.input_norm"] = layer.input_norm
        found[f"{number}.post_attention_norm"] = layer.post_attention_norm
        for norm in ("query_norm", "key_norm"):
            if (tensor := getattr(layer, norm)) is not None:
                found[f"{number}.{norm}"] = tensor
        for part in ("qkv", "output", "gate_up", "down"):
            linear = getattr(layer, part)
            found[f"{number}.{part}"] = linear.weight
            if linear.bias is not None:
                found[f"{number}.{part}.bias"] = linear.bias
    return found


def assert_same_bits(ours: DecoderParameters, expected: DecoderParameters) -> None:
    """Each parameter has the same dtype, shape and bytes."""
    found, wanted = named_tensors(ours), named_tensors(expected)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(_bytes(found[name]), _bytes(tensor)), name


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
