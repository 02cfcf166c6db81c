"""Echoes and places of tokens with every kind of tokenizer, against the tokenizer's own decoding."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.openai.choice import ChoiceText
from headrace.server.openai.echo import Echo, echo_ids, echo_text
from headrace.server.openai.logprobs import token_text
from headrace.server.openai.token_track import TokenEntry, TokenTrack
from headrace.text.detokenizer import Detokenizer
from headrace.text.stop_matcher import StopMatcher
from headrace.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import CORPUS, KINDS, byte_level_with_bos, files_of

MAKERS = KINDS | {"byte_level_with_bos": byte_level_with_bos}
kinds = st.sampled_from(sorted(set(MAKERS) - {"words"}))  # whose texts cannot be told from their words
texts = st.one_of(
    st.sampled_from(CORPUS), st.text(alphabet="aé 日😀.\n", min_size=1, max_size=24), st.text(min_size=1)
)


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.from_files(files_of(MAKERS[kind]()))


def assert_places(made: Tokenizer, text: str, places: list[tuple[int, int]]) -> None:
    """(token id, offset) of every token: in order, inside the text, and where the token's text stands."""
    offsets = [offset for _, offset in places]
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)
    for token_id, offset in places:
        token = token_text(token_id, made.pieces)
        if token_id in made.special_ids or token.startswith(("bytes:", "token_id:")):
            continue
        is_start = offset == 0 and text.startswith(token.removeprefix(" "))
        assert text.startswith(token, offset) or is_start, (token, offset)


@given(kind=kinds, text=texts)
def test_the_tokens_of_an_echoed_text_stand_where_they_say(kind: str, text: str) -> None:
    made = tokenizer(kind)
    ids = made.encode(text)
    echo = echo_text(made, ids, text)
    assert echo.text == text
    assert len(echo.offsets) == len(ids)
    assert list(echo.offsets) == sorted(echo.offsets)
    assert all(0 <= offset <= len(text) for offset in echo.offsets)
    if made.decode(ids, skip_special_tokens=True) == text:
        assert_places(made, text, list(zip(ids, echo.offsets, strict=True)))


@given(kind=kinds, prompt=texts, answer=texts, specials=st.booleans())
def test_an_echo_of_ids_and_its_answer_are_the_text_of_all_ids(
    kind: str, prompt: str, answer: str, specials: bool
) -> None:
    made = tokenizer(kind)
    prompt_ids, answer_ids = made.encode(prompt), made.encode(answer, add_special_tokens=False)
    echo = echo_ids(made, prompt_ids, skip_special_tokens=not specials)
    text, entries = whole_answer(made, echo, answer_ids, skip_special_tokens=not specials)
    streamed = Detokenizer(made, skip_special_tokens=not specials)
    assert echo.text + text == streamed.push([*prompt_ids, *answer_ids]) + streamed.finish()
    places = [(token_id, offset) for token_id, offset in zip(prompt_ids, echo.offsets, strict=True)]
    places += [(entry.token_id, entry.offset) for entry in entries]
    assert_places(made, echo.text + text, places)


def whole_answer(
    made: Tokenizer, echo: Echo, ids: list[int], *, skip_special_tokens: bool
) -> tuple[str, list[TokenEntry]]:
    """The text after an echo, and its tokens."""
    from headrace.ipc.messages import TokenLogprob, TokenOutput

    state = ChoiceText(
        Detokenizer(made, skip_special_tokens=skip_special_tokens, prompt_ids=echo.token_ids),
        StopMatcher(()),
        track=TokenTrack(made.pieces, start=len(echo.text)),
    )
    logprobs = (TokenLogprob(-1.0),) * len(ids)
    delta = state.push(TokenOutput("r", tuple(ids), "length", logprobs=logprobs))
    return delta.text, list(delta.tokens)
