"""Several choices for a prompt: their order, their seeds, the best of them, and what they cost."""

import json
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest
from byte_model import EOS_ID, ids_of, model_info
from front_harness import OPTIONS, Front, running_front
from scripted_engine import say

from headrace.ipc.messages import Abort, Generate, RequestFailed, TokenLogprob, TokenOutput
from headrace.server.openai import checks

# What the scripted engine makes of the choices of one prompt: text, logprob of each token.
CANDIDATES = [("mm", -2.0), ("aaaaaaaa", -1.0), ("z", -1.5), ("bbbb", -1.0)]


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say("Hello.")
    front.engine.received.clear()


def numbered(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """A text that names prompt and place: two choices of the same prompt differ."""
    number = int(generate.rid.rpartition("-")[2])
    return say(f"{len(generate.input_ids)}:{number}")(generate)


def candidates(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
    """One of CANDIDATES, by the choice's place."""
    text, logprob = CANDIDATES[int(generate.rid.rpartition("-")[2]) % len(CANDIDATES)]
    ids = (*ids_of(text), EOS_ID)
    logprobs = () if generate.sampling.logprobs is None else (TokenLogprob(logprob),) * len(ids)
    yield TokenOutput(generate.rid, ids, "stop", EOS_ID, logprobs=logprobs)


def test_choices_come_prompt_by_prompt(front: Front) -> None:
    front.engine.script = numbered
    answer = front.complete(prompt=["a", "bb"], n=2, max_tokens=100).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "1:0"),
        (1, "1:1"),
        (2, "2:2"),
        (3, "2:3"),
    ]


def test_a_prompt_is_counted_once_and_every_choices_tokens(front: Front) -> None:
    usage = front.complete(prompt=["a", "bb"], n=3, max_tokens=4).json()["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 24, "total_tokens": 27}


def test_a_chat_has_choices_too(front: Front) -> None:
    front.engine.script = numbered
    choices = front.chat(n=3).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3


@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_a_stream_gives_each_choice_its_own_text_and_end(front: Front, ask: str) -> None:
    front.engine.script = numbered
    body = {"n": 3, "stream": True, "max_tokens": 100}
    response = front.complete(**body) if ask == "complete" else front.chat(**body)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    texts: dict[int, str] = defaultdict(str)
    ends = []
    for line in lines[:-1]:
        choice = json.loads(line)["choices"][0]
        texts[choice["index"]] += choice["text"] if ask == "complete" else choice["delta"].get("content", "")
        ends += [choice["index"]] * (choice["finish_reason"] is not None)
    assert [texts[index].rpartition(":")[2] for index in (0, 1, 2)] == ["0", "1", "2"]
    assert sorted(ends) == [0, 1, 2]


def test_each_choice_has_its_own_seed_and_the_first_the_requests(front: Front) -> None:
    front.complete(n=3, seed=11, max_tokens=1)
    first, second, third = [generate.sampling.seed for generate in front.engine.of(Generate)]
    assert first == 11
    assert len({first, second, third}) == 3
    front.engine.received.clear()
    front.complete(n=2, seed=11, max_tokens=1)
    assert [generate.sampling.seed for generate in front.engine.of(Generate)] == [first, second]


def test_without_a_seed_the_engine_draws_for_every_choice(front: Front) -> None:
    front.complete(n=2, max_tokens=1)
    assert [generate.sampling.seed for generate in front.engine.of(Generate)] == [None, None]


def test_one_choices_stop_string_leaves_the_others_alone(front: Front) -> None:
    front.engine.script = numbered
    choices = front.complete(prompt="a", n=2, stop="0", max_tokens=100).json()["choices"]
    assert [(choice["text"], choice["matched_stop"]) for choice in choices] == [("1:", "0"), ("1:1", EOS_ID)]
    assert [abort.rid for abort in front.engine.of(Abort)] == [front.engine.of(Generate)[0].rid]


def test_the_best_have_the_highest_logprob_per_token_and_come_best_first(front: Front) -> None:
    front.engine.script = candidates
    answer = front.complete(best_of=4, n=3, max_tokens=100).json()
    assert [choice["text"] for choice in answer["choices"]] == ["aaaaaaaa", "bbbb", "z"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert all(choice["logprobs"] is None for choice in answer["choices"])


def test_every_candidate_is_paid_for(front: Front) -> None:
    front.engine.script = candidates
    usage = front.complete(best_of=4, max_tokens=100).json()["usage"]
    assert usage["completion_tokens"] == sum(len(text) + 1 for text, _ in CANDIDATES)
    assert usage["prompt_tokens"] == 3


def test_the_best_are_chosen_for_each_prompt(front: Front) -> None:
    front.engine.script = candidates
    answer = front.complete(prompt=["a", "b"], best_of=4, n=1, max_tokens=100).json()
    assert [choice["text"] for choice in answer["choices"]] == ["aaaaaaaa", "aaaaaaaa"]


def test_the_best_may_tell_their_logprobs(front: Front) -> None:
    front.engine.script = candidates
    choice = front.complete(best_of=4, logprobs=0, max_tokens=100).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == [*"aaaaaaaa", "<|im_end|>"]


def test_best_of_no_more_than_n_changes_nothing(front: Front) -> None:
    front.engine.script = numbered
    answer = front.complete(prompt="a", best_of=2, n=2, max_tokens=100, stream=False).json()
    assert [choice["text"] for choice in answer["choices"]] == ["1:0", "1:1"]
    assert front.engine.of(Generate)[0].sampling.logprobs is None
    assert front.complete(best_of=1, stream=True).status_code == 200


def test_new_sampling_fields_reach_the_engine_as_they_are(front: Front) -> None:
    front.complete(
        min_p=0.1,
        min_tokens=2,
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"5": -100, "7": 0.5},
        max_tokens=3,
    )
    sampling = front.engine.wait_for(Generate).sampling
    assert (sampling.min_p, sampling.min_tokens, sampling.repetition_penalty) == (0.1, 2, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2, 2)
    assert sampling.logit_bias == ((5, -100), (7, 0.5))


def test_a_bias_for_very_many_generations_is_refused(front: Front) -> None:
    bias = {str(token_id): 1 for token_id in range(200)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "LOGIT_BIASES_AT_MOST", 1000)
        assert front.complete(logit_bias=bias, n=5).status_code == 200
        assert front.complete(logit_bias=bias, n=6).json()["error"]["param"] == "logit_bias"


def test_the_smallest_answer_of_a_chat_must_fit_the_context(front: Front) -> None:
    assert front.chat(min_tokens=10).status_code == 200
    error = front.chat(min_tokens=10**6).json()["error"]
    assert (error["param"], error["code"]) == ("min_tokens", "context_length_exceeded")


def test_the_models_min_p_and_repetition_penalty_hold_where_a_request_gives_none() -> None:
    defaults: dict[str, object] = {"min_p": 0.05, "repetition_penalty": 1.1}
    with running_front(info=model_info(generation_config=defaults)) as front:
        front.complete(max_tokens=1)
        front.complete(max_tokens=1, min_p=0, repetition_penalty=1)
        first, second = [generate.sampling for generate in front.engine.of(Generate)]
        assert (first.min_p, first.repetition_penalty) == (0.05, 1.1)
        assert (second.min_p, second.repetition_penalty) == (0, 1)


def test_the_cache_report_counts_each_prompt_once() -> None:
    options = msgspec.structs.replace(OPTIONS, enable_cache_report=True)
    with running_front(say("Hi", cached_tokens=2), options=options) as front:
        usage = front.complete(prompt=["abc", "abcd"], n=2, max_tokens=2).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
        assert front.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        text = front.complete(stream=True, stream_options={"include_usage": True}).text
        assert '"prompt_tokens_details":{"cached_tokens":2}' in text


def test_without_the_flag_nothing_is_told_of_the_cache(front: Front) -> None:
    front.engine.script = say("Hi", cached_tokens=2)
    assert "prompt_tokens_details" not in front.complete().json()["usage"]
