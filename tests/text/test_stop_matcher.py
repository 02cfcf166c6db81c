"""The stop matcher against its rule, written as plainly as possible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.text.stop_matcher import StopMatcher, StopStep

# Two letters make overlaps, nested and repeated stop strings likely.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("abc", max_size=6), max_size=12)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    steps = [matcher.push(piece) for piece in pieces]
    matched = next((step.matched for step in steps if step.matched is not None), None)
    return "".join(step.text for step in steps) + matcher.finish(), matched


@given(pieces=PIECES, stops=STOPS)
def test_any_split_gives_the_text_before_the_first_complete_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    assert run(StopMatcher(stops), pieces) == first_stop("".join(pieces), stops)


@given(pieces=PIECES, stops=STOPS)
def test_exactly_the_longest_beginning_of_a_stop_string_is_held_back(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    seen = given_out = ""
    for piece in pieces:
        step = matcher.push(piece)
        if step.matched is not None:
            return
        seen += piece
        given_out += step.text
        held = max(
            (n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])),
            default=0,
        )
        assert given_out == seen[: len(seen) - held]


def test_without_stop_strings_text_passes_through() -> None:
    matcher = StopMatcher([])
    assert matcher.push("any thing") == StopStep("any thing", None)
    assert matcher.finish() == ""


def test_the_cut_is_made_at_the_character_inside_a_piece() -> None:
    assert StopMatcher(["\n\n"]).push("one\n\ntwo") == StopStep("one", "\n\n")


def test_a_stop_string_that_spans_pieces_never_shows() -> None:
    matcher = StopMatcher(["Observation:"])
    assert matcher.push("Thought. Observ") == StopStep("Thought. ", None)
    assert matcher.push("ation: rain") == StopStep("", "Observation:")
    assert matcher.finish() == ""


def test_a_beginning_that_comes_to_nothing_is_given_back() -> None:
    matcher = StopMatcher(["Observation:"])
    assert matcher.push("Observ").text == ""
    assert matcher.push("e").text == "Observe"
    assert matcher.push("Obs").text == ""
    assert matcher.finish() == "Obs"


def test_a_stop_string_inside_another_ends_the_answer_at_once() -> None:
    assert StopMatcher(["abcd", "bc"]).push("xabcd") == StopStep("xa", "bc")


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert StopMatcher(["c", "abc"]).push("xabc") == StopStep("x", "abc")


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["."])
    matcher.push("end.")
    assert matcher.push("more.") == StopStep("", ".")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(HeadraceError, match="empty"):
        StopMatcher(["a", ""])
