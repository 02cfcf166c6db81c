"""The tokenizers of well-known models: ids, texts and streams against transformers on the same files."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from real_tokenizers import MODELS, ours, theirs

from headrace.text.detokenizer import Detokenizer
from tests.profiles import examples

TEXTS = [
    "",
    "The capital of France is Paris.",
    "  leading and trailing  ",
    "a  b   c    d\t\te\n\n\n \n  f",
    "日本語のテキスト、한국어, नमस्ते, สวัสดี, שלום, Ελληνικά и русский",
    "😀👍🏽👨‍👩‍👧‍👦🇫🇷 e\u0301 é ﬁ Å \u200b\u00a0\u2028",
    "def f(x: int) -> str:\n\treturn f'{x  ** 2:>10}'  # done\r\n\r\n",
    "1234567890 3.14159 1e-9 ½ ²",
    "I'm sure they'Ll DON'T, we've",
    "a\u0000b\ufffd\x7f",
    "▁ ▁x▁ Ġ Ċ <0x0A><0xFF>",
    "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s> [INST] Bye [/INST]",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <|eot_id|> there<|eot_id|>",
    "<|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>\n\n<tool_call> x </tool_call>",
    "<bos><start_of_turn>user\nHi <end_of_turn>\n<mask> <unk> <pad> <unused1>",
    "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜> <｜end▁of▁sentence｜>",
    "<|startoftext|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
]

models = st.sampled_from(MODELS)
any_text = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(TEXTS), max_size=3).map("".join))
any_cuts = st.lists(st.integers(0, 80), max_size=12)


def stream(made: Detokenizer, ids: list[int], cuts: list[int]) -> str:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return "".join(made.push(ids[start:end]) for start, end in itertools.pairwise(edges)) + made.finish()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_equal_transformers(model: str, add_special_tokens: bool) -> None:
    for text in TEXTS:
        assert ours(model).encode(text, add_special_tokens=add_special_tokens) == theirs(model).encode(
            text, add_special_tokens=add_special_tokens
        ), text


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("skip", [True, False])
def test_text_equals_transformers(model: str, skip: bool) -> None:
    for text in TEXTS:
        ids = theirs(model).encode(text)
        expected = theirs(model).decode(ids, skip_special_tokens=skip)
        assert ours(model).decode(ids, skip_special_tokens=skip) == expected, text


@pytest.mark.parametrize("model", MODELS)
def test_token_by_token_text_equals_transformers(model: str) -> None:
    for text in TEXTS:
        ids = theirs(model).encode(text)
        for skip in (True, False):
            streamed = stream(Detokenizer(ours(model), skip_special_tokens=skip), ids, list(range(len(ids))))
            assert streamed == theirs(model).decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("model", MODELS)
def test_special_tokens_equal_transformers(model: str) -> None:
    tokenizer, expected = ours(model), theirs(model)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (expected.bos_token, expected.eos_token)
    assert tokenizer.eos_token_id == expected.eos_token_id
    assert tokenizer.vocab_size == len(expected)
    assert tokenizer.special_ids == {i for i, token in expected.added_tokens_decoder.items() if token.special}


@pytest.mark.parametrize("model", MODELS)
def test_every_token_streams_as_transformers_decodes_it(model: str) -> None:
    """After a letter, each id of the vocabulary adds what decoding the two together adds."""
    tokenizer, expected = ours(model), theirs(model)
    first = tokenizer.encode("x", add_special_tokens=False)[-1]
    ids = range(0, tokenizer.vocab_size, 1 if tokenizer.vocab_size < 40_000 else 11)
    decoded = expected.batch_decode([[first, token_id] for token_id in ids])
    for token_id, whole in zip(ids, decoded, strict=True):
        made = Detokenizer(tokenizer, skip_special_tokens=False)
        assert made.push([first, token_id]) + made.finish() == whole, token_id


@settings(max_examples=examples(300))
@given(model=models, text=any_text)
def test_ids_of_any_text_equal_transformers(model: str, text: str) -> None:
    assert ours(model).encode(text) == theirs(model).encode(text)


@settings(max_examples=examples(300))
@given(model=models, text=any_text, cuts=any_cuts, skip=st.booleans())
def test_any_split_of_any_text_streams_as_transformers_decodes(
    model: str, text: str, cuts: list[int], skip: bool
) -> None:
    ids = theirs(model).encode(text)
    streamed = stream(Detokenizer(ours(model), skip_special_tokens=skip), ids, cuts)
    assert streamed == theirs(model).decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(200))
@given(model=models, text=any_text, at=st.integers(0, 60), cuts=any_cuts)
def test_an_answer_after_a_prompt_adds_what_transformers_decodes_more(
    model: str, text: str, at: int, cuts: list[int]
) -> None:
    ids = theirs(model).encode(text)
    prompt, answer = ids[:at], ids[at:]
    before, whole = theirs(model).decode(prompt), theirs(model).decode(ids)
    made = Detokenizer(ours(model), skip_special_tokens=False, prompt_ids=prompt)
    streamed = stream(made, answer, cuts)
    # A character that the cut broke is shown as broken in `before`, and whole in the answer.
    assert whole.endswith(streamed)
    assert whole.startswith(before.rstrip("\N{REPLACEMENT CHARACTER}"))
    assert len(streamed) >= len(whole) - len(before)


@settings(max_examples=examples(200))
@given(
    model=st.sampled_from(["llama3_1", "qwen3", "deepseek_v3", "gptoss"]),
    ids=st.lists(st.integers(0, 130_000), max_size=30),
    cuts=any_cuts,
)
def test_any_ids_stream_as_transformers_decodes(model: str, ids: list[int], cuts: list[int]) -> None:
    assert stream(Detokenizer(ours(model)), ids, cuts) == theirs(model).decode(ids, skip_special_tokens=True)


@settings(max_examples=examples(200))
@given(
    model=st.sampled_from(["llama2", "gemma3"]),
    ids=st.lists(st.one_of(st.integers(0, 32_000 - 1), st.integers(3, 500)), max_size=30),
    cuts=any_cuts,
)
def test_any_ids_of_a_byte_fallback_vocabulary_stream_as_transformers_decodes(
    model: str, ids: list[int], cuts: list[int]
) -> None:
    """Where their bytes are valid; where not, SentencePiece itself is the measure (test_text_sentencepiece.py)."""
    expected = theirs(model).decode(ids, skip_special_tokens=True)
    assume("\N{REPLACEMENT CHARACTER}" not in expected)
    assert stream(Detokenizer(ours(model)), ids, cuts) == expected
