"""Tokens beside the text: where each begins, which are told, and in which shape. No network, no engine."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from byte_model import EOS_ID, ids_of, model_info
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import logprob_of

from headrace.ipc.messages import TokenLogprob, TokenOutput
from headrace.server.openai.choice import ChoiceText, Delta
from headrace.server.openai.choice_plan import choice_seed
from headrace.server.openai.echo import Echo, echo_ids, echo_text
from headrace.server.openai.logprobs import chat_logprobs, completion_logprobs, token_text
from headrace.server.openai.served_model import build_served_model
from headrace.server.openai.token_track import TokenEntry, TokenTrack, first_character
from headrace.text.detokenizer import Detokenizer
from headrace.text.stop_matcher import StopMatcher

TOKENIZER = build_served_model(model_info(), chat_template=None, sampling_defaults="model").tokenizer
PIECES = TOKENIZER.pieces


def choice(*stops: str, echo: Echo | None = None) -> ChoiceText:
    start = 0 if echo is None else len(echo.text)
    return ChoiceText(
        Detokenizer(TOKENIZER), StopMatcher(stops), track=TokenTrack(PIECES, start=start), echo=echo
    )


def output(ids: Sequence[int], end: str | None = None) -> TokenOutput:
    logprobs = tuple(logprob_of(token_id, 0) for token_id in ids)
    matched = ids[-1] if end == "stop" else None
    return TokenOutput("r", tuple(ids), end, matched, logprobs=logprobs)  # type: ignore[arg-type]


def answer(ids: Sequence[int], cuts: Sequence[int], end: str, *stops: str) -> list[Delta]:
    """The deltas of an answer whose tokens come in steps that end at `cuts`."""
    state = choice(*stops)
    deltas = []
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    for start, stop in pairwise(bounds):
        last = stop == len(ids)
        deltas.append(state.push(output(ids[start:stop], end if last else None)))
        if state.finished:
            break
    return deltas


def told(deltas: Sequence[Delta]) -> tuple[str, list[TokenEntry]]:
    return "".join(delta.text for delta in deltas), [entry for delta in deltas for entry in delta.tokens]


def offsets(text: str, *stops: str) -> list[tuple[str, int]]:
    _, entries = told(answer(ids_of(text), (), "length", *stops))
    return [(token_text(entry.token_id, PIECES), entry.offset) for entry in entries]


class TestOffsets:
    def test_each_token_has_the_place_of_its_first_character(self) -> None:
        assert offsets("abc") == [("a", 0), ("b", 1), ("c", 2)]

    def test_the_parts_of_a_character_share_its_place(self) -> None:
        assert offsets("aéb") == [("a", 0), ("bytes:\\xc3", 1), ("bytes:\\xa9", 1), ("b", 2)]

    def test_what_follows_broken_bytes_stands_after_their_replacement(self) -> None:
        half, a = ids_of("é")[0], ids_of("a")[0]
        text, entries = told(answer([half, a], (), "length"))
        assert text == "\N{REPLACEMENT CHARACTER}a"
        assert [entry.offset for entry in entries] == [0, 1]

    def test_the_id_that_ends_the_answer_stands_at_its_end(self) -> None:
        _, entries = told(answer([*ids_of("ab"), EOS_ID], (), "stop"))
        assert entries[-1] == TokenEntry(EOS_ID, 2, logprob_of(EOS_ID, 0), is_end=True)

    def test_an_end_after_broken_bytes_stands_after_their_replacement(self) -> None:
        _, entries = told(answer([ids_of("é")[0], EOS_ID], (), "stop"))
        assert [entry.offset for entry in entries] == [0, 1]

    def test_a_special_token_inside_the_text_takes_no_room(self) -> None:
        start = ids_of("<|im_start|>")[0]
        _, entries = told(answer([*ids_of("a"), start, *ids_of("b")], (), "length"))
        assert [entry.offset for entry in entries] == [0, 1, 1]

    def test_a_leading_space_that_is_dropped_does_not_push_a_token_before_the_text(self) -> None:
        assert first_character(" Hello", 0, 5) == 0


class TestStopStrings:
    def test_tokens_that_begin_at_the_cut_or_after_it_are_not_told(self) -> None:
        assert offsets("abcd", "bc") == [("a", 0)]

    def test_a_token_that_begins_before_the_cut_is_told(self) -> None:
        assert offsets("xé", "é") == [("x", 0)]
        start = ids_of("<|im_start|>")[0]
        _, entries = told(answer([start, *ids_of("ab")], (), "length", "b"))
        assert [entry.token_id for entry in entries] == [start, ids_of("a")[0]]

    def test_text_that_is_held_back_holds_its_tokens_back(self) -> None:
        state = choice("bcd")
        first = state.push(output(ids_of("ab")))
        assert (first.text, len(first.tokens)) == ("a", 1)
        end = state.push(output(ids_of("cx"), "length"))
        assert (end.text, [entry.offset for entry in end.tokens]) == ("bcx", [1, 2, 3])

    def test_an_incomplete_character_holds_its_tokens_back(self) -> None:
        state = choice()
        first, second = ids_of("é")
        assert state.push(output([first])) == Delta("")
        assert len(state.push(output([second])).tokens) == 2

    def test_without_a_track_no_tokens_are_told(self) -> None:
        state = ChoiceText(Detokenizer(TOKENIZER), StopMatcher(()))
        assert state.push(output(ids_of("ab"), "length")).tokens == ()


@given(
    text=st.text(alphabet="ab é日😀", max_size=20),
    stops=st.lists(st.text(alphabet="ab é日😀", min_size=1, max_size=3), max_size=2),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    by_id=st.booleans(),
)
def test_any_steps_tell_the_same_text_and_tokens(
    text: str, stops: list[str], cuts: list[int], by_id: bool
) -> None:
    ids = [*ids_of(text), EOS_ID] if by_id else ids_of(text + "a")
    end = "stop" if by_id else "length"
    whole = told(answer(ids, (), end, *stops))
    assert told(answer(ids, cuts, end, *stops)) == whole
    said, entries = whole
    assert [entry.token_id for entry in entries] == ids[: len(entries)]
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)
    for entry in entries:
        assert entry.is_end or entry.offset < len(said)


@given(
    text=st.text(alphabet="ab é日😀", min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    stops=st.lists(st.text(alphabet="ab é日😀", min_size=1, max_size=3), max_size=2),
)
def test_a_step_never_tells_a_token_before_its_text(text: str, cuts: list[int], stops: list[str]) -> None:
    ids = ids_of(text)
    length = 0
    for delta in answer(ids, cuts, "length", *stops):
        length += len(delta.text)
        assert all(entry.offset < length for entry in delta.tokens)


class TestEcho:
    def test_a_text_is_echoed_as_it_is_with_the_place_of_each_token(self) -> None:
        echo = echo_text(TOKENIZER, ids_of("aéb"), "aéb")
        assert (echo.text, echo.offsets) == ("aéb", (0, 1, 1, 2))

    def test_special_tokens_that_the_text_spells_take_their_room(self) -> None:
        text = "<|im_start|>a"
        assert echo_text(TOKENIZER, ids_of(text), text).offsets == (0, len("<|im_start|>"))

    def test_a_special_token_that_was_added_takes_none(self) -> None:
        assert echo_text(TOKENIZER, [EOS_ID, *ids_of("ab")], "ab").offsets == (0, 0, 1)

    def test_tokens_find_back_into_a_text_that_the_tokenizer_normalised(self) -> None:
        given_text, seen = "e\N{COMBINING ACUTE ACCENT}xyz", "éxyz"
        echo = echo_text(TOKENIZER, ids_of(seen), given_text)
        assert echo.text == given_text
        assert [given_text[offset] for offset in echo.offsets[-3:]] == ["x", "y", "z"]

    def test_ids_are_echoed_as_text_without_special_tokens_unless_they_are_wanted(self) -> None:
        ids = [EOS_ID, *ids_of("ab")]
        plain = echo_ids(TOKENIZER, ids, skip_special_tokens=True)
        assert (plain.text, plain.offsets) == ("ab", (0, 0, 1))
        full = echo_ids(TOKENIZER, ids, skip_special_tokens=False)
        assert (full.text, full.offsets) == ("<|im_end|>ab", (0, 10, 11))

    def test_a_character_that_the_ids_leave_incomplete_is_the_answers(self) -> None:
        first, second = ids_of("é")
        echo = echo_ids(TOKENIZER, [*ids_of("a"), first], skip_special_tokens=True)
        assert (echo.text, echo.offsets) == ("a", (0, 1))
        detokenizer = Detokenizer(TOKENIZER, prompt_ids=echo.token_ids)
        state = ChoiceText(detokenizer, StopMatcher(()), track=TokenTrack(PIECES, start=1), echo=echo)
        delta = state.push(output([second], "length"))
        assert (delta.text, delta.tokens[0].offset) == ("é", 1)

    def test_the_first_tokens_logprob_is_unknown_and_the_answers_places_go_on(self) -> None:
        echo = echo_text(TOKENIZER, ids_of("ab"), "ab")
        state = choice(echo=echo)
        first = TokenOutput(
            "r",
            tuple(ids_of("c")),
            "length",
            logprobs=(TokenLogprob(-3.0),),
            prompt_logprobs=(TokenLogprob(-2.0),),
        )
        opening = state.open(first)
        assert opening is not None
        assert [entry.logprob for entry in opening.tokens] == [None, TokenLogprob(-2.0)]
        assert [entry.offset for entry in state.push(first).tokens] == [2]
        assert state.open(first) is None


class TestShapes:
    A, B, HALF = ids_of("a")[0], ids_of("b")[0], ids_of("é")[0]

    def entries(self) -> list[TokenEntry]:
        return [
            TokenEntry(self.A, 0, None),
            TokenEntry(self.HALF, 1, TokenLogprob(-2.0, ((self.A, -1.0), (self.B, -1.5)))),
            TokenEntry(EOS_ID, 2, TokenLogprob(-0.5, ((EOS_ID, -0.5),)), is_end=True),
        ]

    def test_completions_have_four_lists_and_the_chosen_token_among_the_likeliest(self) -> None:
        shape = completion_logprobs(self.entries(), PIECES)
        assert shape.tokens == ["a", "bytes:\\xc3", "<|im_end|>"]
        assert shape.text_offset == [0, 1, 2]
        assert shape.token_logprobs == [None, -2.0, -0.5]
        assert shape.top_logprobs == [
            None,
            {"a": -1.0, "b": -1.5, "bytes:\\xc3": -2.0},
            {"<|im_end|>": -0.5},
        ]

    def test_chats_have_objects_with_bytes_and_leave_the_end_out(self) -> None:
        (token,) = chat_logprobs(self.entries(), PIECES).content
        assert (token.token, token.bytes, token.logprob) == ("bytes:\\xc3", [0xC3], -2.0)
        assert [(top.token, top.bytes, top.logprob) for top in token.top_logprobs] == [
            ("a", [97], -1.0),
            ("b", [98], -1.5),
        ]

    def test_an_id_without_a_token_is_named_by_its_number(self) -> None:
        (token,) = chat_logprobs([TokenEntry(99_999, 0, TokenLogprob(-1.0))], PIECES).content
        assert (token.token, token.bytes) == ("token_id:99999", None)

    def test_minus_infinity_becomes_a_number(self) -> None:
        entry = TokenEntry(self.A, 0, TokenLogprob(-math.inf, ((self.B, -math.inf),)))
        shape = completion_logprobs([entry], PIECES)
        assert shape.token_logprobs == [-9999.0]
        assert shape.top_logprobs == [{"b": -9999.0, "a": -9999.0}]


class TestMeanLogprob:
    def test_it_is_that_of_all_counted_tokens(self) -> None:
        state = choice("b")
        ids = ids_of("abc")
        state.push(output(ids, "length"))
        assert state.mean_logprob() == pytest.approx(-(ids[0] + ids[1]) / 2000)

    def test_an_empty_answer_is_the_worst(self) -> None:
        assert choice().mean_logprob() == -math.inf


class TestSeeds:
    def test_the_first_choice_has_the_requests_own(self) -> None:
        assert choice_seed(7, 0) == 7

    def test_the_others_have_different_ones_that_fit_and_repeat(self) -> None:
        seeds = [choice_seed(seed, index) for seed in (-(2**63), 0, 1, 2**63 - 1) for index in range(32)]
        assert len(set(seeds)) == len(seeds)
        assert all(seed is not None and -(2**63) <= seed < 2**63 for seed in seeds)
        assert choice_seed(7, 3) == choice_seed(7, 3)

    def test_without_a_seed_there_is_none(self) -> None:
        assert choice_seed(None, 3) is None
