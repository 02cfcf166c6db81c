"""Requests that share steps, chunks and pages give what each gives alone, which is what transformers gives."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.harness import Visit, play, start_engine
from tests.models.harness import theirs_greedy
from tests.tiny_models import make_tiny, median_gap, random_ids, save_checkpoint

PROMPTS = (1, 5, 16, 20, 33, 3)
ANSWER = 12


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint, prompts, and transformers' greedy answers."""

    folder: str
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = make_tiny(request.param)
    assert median_gap(model) > 0.05  # no ties by accident
    folder: Path = tmp_path_factory.mktemp("batching")
    save_checkpoint(model, folder)
    prompts = [random_ids(model, length, seed=length) for length in PROMPTS]
    return Case(str(folder), prompts, [theirs_greedy(model, prompt, ANSWER) for prompt in prompts])


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [1, 3, 16, 512])
def test_requests_that_join_and_leave_do_not_change_each_others_tokens(
    case: Case, chunk: int, page_size: int
) -> None:
    engine, _ = start_engine(case.folder, chunked_prefill_size=chunk, page_size=page_size)
    first, second, leaver, *others = case.prompts
    visits = [
        Visit(first, ANSWER),
        Visit(second, ANSWER, joins=1),
        Visit(leaver, ANSWER, joins=1, leaves=8),
        *(Visit(prompt, ANSWER, joins=2 + 4 * number) for number, prompt in enumerate(others)),
    ]
    answers = play(engine, visits)
    left = answers.pop(2)
    expected = list(case.answers)
    assert left == expected.pop(2)[: len(left)]
    assert answers == expected


def test_requests_that_wait_for_pages_give_the_same_tokens(case: Case) -> None:
    # Room for the largest (33 + 12 tokens) and little beside it.
    engine, _ = start_engine(case.folder, max_total_tokens=48, chunked_prefill_size=16)
    assert play(engine, [Visit(prompt, ANSWER) for prompt in case.prompts]) == case.answers


def test_requests_that_wait_for_a_place_give_the_same_tokens(case: Case) -> None:
    engine, _ = start_engine(case.folder, max_running_requests=2)
    assert play(engine, [Visit(prompt, ANSWER) for prompt in case.prompts]) == case.answers


def test_a_request_that_leaves_while_its_prompt_is_computed_leaves_no_trace(case: Case) -> None:
    engine, _ = start_engine(case.folder, chunked_prefill_size=4, max_total_tokens=48)
    stays, leaver = case.prompts[1], case.prompts[4]
    # The one who comes last gets the pages of the one who left.
    visits = [Visit(leaver, ANSWER, leaves=3), Visit(leaver, ANSWER, joins=3), Visit(stays, ANSWER, joins=5)]
    assert play(engine, visits) == [[], case.answers[4], case.answers[1]]


def test_what_has_ended_leaves_nothing_behind_under_its_id(case: Case) -> None:
    engine, _ = start_engine(case.folder, chunked_prefill_size=4)
    small, large = case.prompts[0], case.prompts[4]
    # Each time the same id, with more pages and with fewer.
    assert play(engine, [Visit(small, ANSWER)]) == [case.answers[0]]
    assert play(engine, [Visit(large, ANSWER)]) == [case.answers[4]]
    assert play(engine, [Visit(small, ANSWER, leaves=4)]) == [case.answers[0][:4]]
    assert play(engine, [Visit(large, ANSWER)]) == [case.answers[4]]
