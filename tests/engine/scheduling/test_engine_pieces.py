"""A step in pieces: where it is cut, and what stays of an earlier cut."""

from headrace.engine.scheduling.pieces import Piece, pieces_of, whole
from headrace.engine.scheduling.request import Request, Step
from headrace.ipc.messages import SamplingParams


def request(rid: str, prompt: int, computed: int = 0, output: tuple[int, ...] = ()) -> Request:
    made = Request(rid, list(range(100, 100 + prompt)), SamplingParams(max_tokens=4))
    made.computed, made.output = computed, list(output)
    return made


def cuts(pieces: list[Piece]) -> list[list[tuple[str, int, int]]]:
    return [[(r.rid, start, end) for r, start, end in piece.prefills()] for piece in pieces]


def test_a_step_is_cut_into_pieces_of_as_many_tokens_across_its_requests() -> None:
    a, b = request("a", 30, computed=4), request("b", 5)
    pieces = pieces_of(Step(((a, 20), (b, 5)), ()), 8)
    assert cuts(pieces) == [
        [("a", 4, 12)],
        [("a", 12, 20)],
        [("a", 20, 24), ("b", 0, 4)],
        [("b", 4, 5)],
    ]
    assert [token for piece in pieces for token in piece.input_ids()] == [*a.prompt[4:24], *b.prompt]


def test_each_piece_is_a_step_that_can_be_committed_after_those_before_it() -> None:
    a = request("a", 20)
    finished = []
    for piece in pieces_of(Step(((a, 20),), ()), 8):
        finished.append(piece.step.finished_prefills())
        a.computed += piece.prompt_tokens
    assert finished == [[], [], [a]]


def test_who_decodes_is_in_the_first_piece() -> None:
    a, b = request("a", 3, computed=3, output=(7,)), request("b", 12)
    first, second = pieces_of(Step(((b, 12),), (a,)), 8)
    assert first.step.decodes == (a,)
    assert first.input_ids() == [*b.prompt[:8], 7]
    assert second.step.decodes == ()


def test_a_step_that_is_short_enough_is_one_piece() -> None:
    step = Step(((request("a", 8), 8),), (request("b", 1, computed=1, output=(7,)),))
    assert pieces_of(step, 8) == [whole(step)]
    alone = Step((), step.decodes)
    assert pieces_of(alone, 8) == [whole(alone)]


def test_what_has_begun_is_not_cut_anew_for_who_comes_later() -> None:
    a, b = request("a", 11), request("b", 9)
    begun = pieces_of(Step(((a, 11),), ()), 8)
    again = pieces_of(Step(((a, 11), (b, 9)), ()), 8, begun)
    assert again[:2] == begun
    assert cuts(again) == [[("a", 0, 8)], [("a", 8, 11)], [("b", 0, 8)], [("b", 8, 9)]]


def test_what_has_begun_is_cut_anew_from_where_somebody_has_gone() -> None:
    a, b, c = request("a", 8), request("b", 5), request("c", 9)
    begun = pieces_of(Step(((a, 8), (b, 5), (c, 1)), ()), 8)
    again = pieces_of(Step(((a, 8), (c, 9)), ()), 8, begun)
    assert cuts(again) == [[("a", 0, 8)], [("c", 0, 8)], [("c", 8, 9)]]


def test_pieces_whose_pages_have_changed_are_others() -> None:
    a = request("a", 8)
    step = Step(((a, 8),), ())
    before = whole(step)
    assert whole(step) == before
    a.pages_changed += 1
    assert whole(step) != before
