"""The streaming detokenizer against decoding everything at once."""

import functools
import itertools

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from small_tokenizers import ADDED, CHAT_SPECIALS, CORPUS, KINDS, files_of
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from headrace.errors import HeadraceError
from headrace.text.detokenizer import Detokenizer
from headrace.text.tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.from_files(files_of(KINDS[kind]()))


def stream(made: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [made.push(ids[start:end]) for start, end in itertools.pairwise(edges)] + [made.finish()]


kinds = st.sampled_from(sorted(KINDS))
any_ids = st.lists(st.integers(0, 450), max_size=40)
any_cuts = st.lists(st.integers(0, 40), max_size=40)
any_text = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from([*dict.fromkeys(CORPUS), *CHAT_SPECIALS, *ADDED, " ", "😀"]), max_size=4).map(
        "".join
    ),
)


def byte_runs_are_text(tok: Tokenizer, ids: list[int]) -> bool:
    """Whether decode() leaves the byte tokens' valid characters alone (see Detokenizer)."""
    return not tok.pieces.rules.mark_each_byte or BROKEN not in tok.decode(ids)


@given(kind=kinds, text=any_text, cuts=any_cuts, skip=st.booleans())
@example(kind="byte_level", text="".join(ADDED), cuts=[1], skip=True)
def test_any_split_of_a_text_gives_what_decode_gives(
    kind: str, text: str, cuts: list[int], skip: bool
) -> None:
    tok = tokenizer(kind)
    ids = tok.encode(text)
    parts = stream(Detokenizer(tok, skip_special_tokens=skip), ids, cuts)
    assert "".join(parts) == tok.decode(ids, skip_special_tokens=skip)


@given(kind=kinds, ids=any_ids, cuts=any_cuts, skip=st.booleans())
def test_any_split_of_any_ids_gives_what_decode_gives(
    kind: str, ids: list[int], cuts: list[int], skip: bool
) -> None:
    tok = tokenizer(kind)
    assume(byte_runs_are_text(tok, ids))
    parts = stream(Detokenizer(tok, skip_special_tokens=skip), ids, cuts)
    assert "".join(parts) == tok.decode(ids, skip_special_tokens=skip)


@given(kind=kinds, ids=any_ids, cuts=any_cuts, more_cuts=any_cuts)
def test_two_splits_give_the_same_text(
    kind: str, ids: list[int], cuts: list[int], more_cuts: list[int]
) -> None:
    tok = tokenizer(kind)
    assert "".join(stream(Detokenizer(tok), ids, cuts)) == "".join(stream(Detokenizer(tok), ids, more_cuts))


@given(kind=kinds, text=any_text, split=st.integers(0, 60), cuts=any_cuts)
def test_after_a_prompt_the_text_is_what_the_ids_add_to_it(
    kind: str, text: str, split: int, cuts: list[int]
) -> None:
    tok = tokenizer(kind)
    ids = tok.encode(text)
    prompt, answer = ids[:split], ids[split:]
    before, whole = tok.decode(prompt), tok.decode(ids)
    assume(whole.startswith(before))  # the prompt does not end inside a character
    parts = stream(Detokenizer(tok, prompt_ids=prompt), answer, cuts)
    assert before + "".join(parts) == whole


@given(kind=kinds, prompt=any_ids, ids=any_ids)
def test_a_prompt_of_any_ids_leaves_the_state_of_having_streamed_it(
    kind: str, prompt: list[int], ids: list[int]
) -> None:
    tok = tokenizer(kind)
    streamed = Detokenizer(tok)
    streamed.push(prompt)
    started = Detokenizer(tok, prompt_ids=prompt)
    assert [started.push(ids), started.finish()] == [streamed.push(ids), streamed.finish()]


def byte_ids(kind: str) -> dict[bytes, int]:
    tok = tokenizer(kind)
    pieces = {tok.pieces.piece(token_id): token_id for token_id in range(tok.vocab_size)}
    return {
        piece: token_id for piece, token_id in pieces.items() if isinstance(piece, bytes) and len(piece) == 1
    }


BYTE_LEVEL = byte_ids("byte_level")
FALLBACK = byte_ids("byte_fallback")


def each(data: bytes, ids: dict[bytes, int]) -> list[int]:
    return [ids[bytes([byte])] for byte in data]


@given(data=st.binary(max_size=24))
def test_any_bytes_are_broken_up_as_decode_does(data: bytes) -> None:
    ids = each(data, BYTE_LEVEL)
    parts = stream(Detokenizer(tokenizer("byte_level")), ids, list(range(len(ids))))
    assert "".join(parts) == tokenizer("byte_level").decode(ids) == data.decode("utf-8", "replace")


@pytest.mark.parametrize(("kind", "ids"), [("byte_level", BYTE_LEVEL), ("byte_fallback", FALLBACK)])
@given(text=st.text(min_size=1, max_size=8))
def test_a_character_comes_with_its_last_byte(kind: str, ids: dict[bytes, int], text: str) -> None:
    made = Detokenizer(tokenizer(kind), prompt_ids=tokenizer(kind).encode("Paris"))
    for character in text:
        *first, last = each(character.encode(), ids)
        assert made.push(first) == ""
        assert made.push([last]) == character
    assert made.finish() == ""


def test_an_incomplete_last_character_is_shown_as_broken_at_the_end_only() -> None:
    made = Detokenizer(tokenizer("byte_level"))
    assert made.push(each("a😀".encode()[:-1], BYTE_LEVEL)) == "a"
    assert made.finish() == BROKEN


def test_a_byte_that_can_begin_nothing_is_shown_as_broken_at_once() -> None:
    made = Detokenizer(tokenizer("byte_level"))
    assert made.push(each(b"\xff", BYTE_LEVEL)) == BROKEN


def test_an_invalid_fallback_byte_spoils_only_itself() -> None:
    ids = each("é".encode() + b"\xff" + "è".encode(), FALLBACK)
    assert "".join(stream(Detokenizer(tokenizer("byte_fallback")), ids, [1, 2, 3])) == f"é{BROKEN}è"


def test_fallback_bytes_cut_short_by_a_word_are_marked_one_by_one_as_decode_does() -> None:
    tok = tokenizer("byte_fallback")
    ids = [*each("日".encode()[:2], FALLBACK), *tok.encode("and", add_special_tokens=False)]
    made = Detokenizer(tok)
    assert made.push(ids) + made.finish() == tok.decode(ids) == f"{BROKEN * 2} and"


@pytest.mark.parametrize("before", ["", "x"])
@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("special", ["", "<|im_end|>"])
def test_a_character_that_the_prompt_began_is_the_answers_first(before: str, cut: int, special: str) -> None:
    tok = tokenizer("byte_level")
    start, end = each("😀".encode()[:cut], BYTE_LEVEL), each("😀".encode()[cut:], BYTE_LEVEL)
    made = Detokenizer(tok, prompt_ids=[*tok.encode(before), *start, *tok.encode(special)])
    assert made.push(end) == "😀"


def test_the_leading_space_is_kept_after_a_prompt_and_dropped_without() -> None:
    tok = tokenizer("byte_fallback")
    prompt, answer = tok.encode("The capital is"), tok.encode("Paris", add_special_tokens=False)
    assert Detokenizer(tok).push(answer) == "Paris"
    assert Detokenizer(tok, prompt_ids=prompt[:1]).push(answer) == "Paris"
    assert Detokenizer(tok, prompt_ids=prompt).push(answer) == " Paris"


def test_special_tokens_inside_a_character_do_not_break_it() -> None:
    tok = tokenizer("byte_level")
    special = tok.encode("<|im_end|>")
    first, *rest = each("é".encode(), BYTE_LEVEL)
    made = Detokenizer(tok)
    assert made.push([first, *special]) == ""
    assert made.push(rest) == "é"


def test_a_decoder_that_cannot_be_followed_is_refused_by_name() -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.CTC()])
    tok = Tokenizer.from_files(files_of(backend))
    with pytest.raises(HeadraceError, match=r"step CTC .*ByteFallback, CTC"):
        Detokenizer(tok)
