"""Folders with a SentencePiece model only, against SentencePiece itself and against transformers."""

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_tokenizers import CORPUS, write_files
from small_vocabularies import (
    SENTENCEPIECE,
    sentencepiece_files,
    sentencepiece_library,
    sentencepiece_model,
    train,
)
from transformers import AutoTokenizer

from headrace.errors import HeadraceError
from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import Detokenizer
from headrace.text.sentencepiece_model import read_sentencepiece
from headrace.text.tokenizer import Tokenizer

NAMES = list(SENTENCEPIECE)
OURS = {name: Tokenizer.from_files(sentencepiece_files(name)) for name in NAMES}

any_text = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [*dict.fromkeys(CORPUS), " ", "  ", "\n\n", "\n\n\n", "▁", "<tool>", "<start_of_turn>", "ﬁ", "😀"]
        ),
        max_size=5,
    ).map("".join),
)


@given(name=st.sampled_from(NAMES), text=any_text)
def test_ids_of_any_text_equal_sentencepiece(name: str, text: str) -> None:
    library = sentencepiece_library(name)
    pieces = {library.id_to_piece(i) for i in range(library.get_piece_size()) if library.is_control(i)}
    # SentencePiece does not know special tokens in a text; a test below has them.
    assume(not any(piece in text for piece in [*pieces, library.id_to_piece(library.unk_id())]))
    assert OURS[name].encode(text, add_special_tokens=False) == library.encode(text)


@given(name=st.sampled_from(["llama_like", "gemma_like", "unigram"]), data=st.data())
def test_any_split_of_any_ids_streams_as_sentencepiece_decodes(name: str, data: st.DataObject) -> None:
    """Invalid bytes too: only they are marked as broken, where the tokenizers library marks all around them."""
    library = sentencepiece_library(name)
    # Unknown is "⁇" to SentencePiece; a space made of bytes at the very start is dropped as in transformers.
    left_out = {library.unk_id(), library.piece_to_id("<0x20>")}
    any_id = st.integers(0, library.get_piece_size() - 1).filter(lambda token_id: token_id not in left_out)
    ids = data.draw(st.lists(any_id, max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8).map(sorted))
    made = Detokenizer(OURS[name])
    parts = [made.push(ids[start:end]) for start, end in itertools.pairwise([0, *cuts, len(ids)])]
    assert "".join(parts) + made.finish() == library.decode(ids)


@given(data=st.binary(max_size=16), name=st.sampled_from(["llama_like", "gemma_like"]))
def test_any_bytes_stream_as_sentencepiece_decodes(data: bytes, name: str) -> None:
    library = sentencepiece_library(name)
    ids = [library.piece_to_id(f"<0x{byte:02X}>") for byte in b"x" + data + b"y"]
    made = Detokenizer(OURS[name])
    assert "".join(made.push([token_id]) for token_id in ids) + made.finish() == library.decode(ids)


TEXTS = [
    "The capital of France",
    "  two  spaces ",
    "<s>[INST] first [/INST] one </s><s> [INST] second",
    "<bos><start_of_turn>user\n\nhi <eos> x",
    "<tool> <ctl>x <unk> y<tool>",
    "日本語 😀 <more> <late>",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "bare": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "bos": {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True},
    "bos_and_eos": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": True,
    },
    "not_legacy": {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": False, "add_bos_token": False},
    "llama": {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True},
    "llama_that_says_nothing": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
    "llama_without_space": {
        "tokenizer_class": "LlamaTokenizer",
        "add_prefix_space": False,
        "add_bos_token": True,
    },
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["llama_like", "gemma_like", "composed_bpe", "composed_unigram"])
def test_ids_with_special_tokens_equal_transformers(name: str, settings: str, tmp_path: Path) -> None:
    if SETTINGS[settings]["tokenizer_class"] == "LlamaTokenizer" and name != "llama_like":
        return  # that class reads every model as if it were Llama's
    library = sentencepiece_library(name)
    named = {
        "eos_token": library.id_to_piece(library.eos_id()),
        "bos_token": library.id_to_piece(library.bos_id()),
    }
    added = {str(library.get_piece_size()): {"content": "<more>", "special": True, "normalized": False}}
    config = {**SETTINGS[settings], **named, "unk_token": "<unk>", "added_tokens_decoder": added}
    files = sentencepiece_files(name, config)
    expected = AutoTokenizer.from_pretrained(write_files(files, tmp_path))
    # Whether a text begins with BOS by default is asked elsewhere: transformers 5 says no.
    special = "add_bos_token" in config
    for text in TEXTS:
        ids = Tokenizer.from_files(files).encode(text, add_special_tokens=special)
        assert ids == expected.encode(text, add_special_tokens=special), text
        decoded = Tokenizer.from_files(files).decode(ids, skip_special_tokens=False)
        assert decoded == expected.decode(ids, skip_special_tokens=False), text


def test_the_models_own_bos_begins_a_text_unless_the_config_says_no() -> None:
    bos = sentencepiece_library("llama_like").bos_id()
    assert OURS["llama_like"].encode("the")[0] == bos
    quiet = Tokenizer.from_files(sentencepiece_files("llama_like", {"add_bos_token": False}))
    assert bos not in quiet.encode("the")
    assert OURS["unigram"].encode("the") == sentencepiece_library("unigram").encode("the")


@pytest.mark.parametrize("text", [" hello", "  two  spaces ", "▁x", "", " "])
def test_a_legacy_llama_keeps_the_spaces_that_a_text_begins_with(text: str) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": False}
    tokenizer = Tokenizer.from_files(sentencepiece_files("llama_like", config))
    assert tokenizer.encode(text) == sentencepiece_library("llama_like").encode(text)


def test_the_models_special_tokens_are_named_for_tokenizer_and_template() -> None:
    tokenizer = OURS["gemma_like"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert tokenizer.eos_token_id == sentencepiece_library("gemma_like").eos_id()
    template = ChatTemplate.from_files(
        sentencepiece_files("gemma_like"), override="{{ bos_token }}{{ unk_token }}"
    )
    assert template is not None and template.render([]) == "<bos><unk>"
    assert OURS["unigram"].bos_token is None


def test_a_reserved_piece_takes_the_name_that_the_config_gives_it() -> None:
    library = sentencepiece_library("composed_bpe")
    reserved = library.piece_to_id("<ctl>")
    config = {"added_tokens_decoder": {str(reserved): {"content": "<|im_start|>", "special": True}}}
    tokenizer = Tokenizer.from_files(sentencepiece_files("composed_bpe", config))
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [reserved]
    assert tokenizer.vocab_size == library.get_piece_size()


def test_an_added_token_that_cannot_have_its_id_is_refused() -> None:
    config = {"added_tokens_decoder": {"9000": {"content": "<far>", "special": True}}}
    with pytest.raises(
        HeadraceError, match=r"'<far>' should have the id 9000; after this vocabulary it gets 420"
    ):
        Tokenizer.from_files(sentencepiece_files("llama_like", config))


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_read_as_the_library_reads_it(name: str) -> None:
    from sentencepiece import sentencepiece_model_pb2

    theirs = sentencepiece_model_pb2.ModelProto()
    theirs.ParseFromString(sentencepiece_model(name))
    model = read_sentencepiece(sentencepiece_model(name))
    assert [(piece.text, piece.score, piece.kind) for piece in model.pieces] == [
        (piece.piece, piece.score, piece.type) for piece in theirs.pieces
    ]
    trainer, normalizer = theirs.trainer_spec, theirs.normalizer_spec
    assert (model.model_kind, model.byte_fallback) == (trainer.model_type, trainer.byte_fallback)
    assert (model.unk_id, model.bos_id, model.eos_id) == (trainer.unk_id, trainer.bos_id, trainer.eos_id)
    assert (model.bos_piece, model.eos_piece) == (trainer.bos_piece, trainer.eos_piece)
    assert model.charsmap == normalizer.precompiled_charsmap
    assert model.add_dummy_prefix == normalizer.add_dummy_prefix
    assert model.remove_extra_whitespaces == normalizer.remove_extra_whitespaces


@pytest.mark.parametrize("name", ["llama_like", "composed_bpe"])
def test_pairs_are_joined_by_score_whatever_the_order_of_the_pieces(name: str) -> None:
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_model(name))
    normal = [index for index, piece in enumerate(proto.pieces) if piece.type == piece.NORMAL]
    backwards = [(proto.pieces[index].piece, proto.pieces[index].score) for index in reversed(normal)]
    for index, (text, score) in zip(normal, backwards, strict=True):
        proto.pieces[index].piece, proto.pieces[index].score = text, score
    content = proto.SerializeToString()
    library, tokenizer = (
        SentencePieceProcessor(model_proto=content),
        Tokenizer.from_files({"tokenizer.model": content}),
    )
    for text in CORPUS[:5]:
        assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text)


def test_an_unused_piece_is_never_made() -> None:
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_model("llama_like"))
    the = next(piece for piece in proto.pieces if piece.piece == "▁the")
    the.type = the.UNUSED
    content = proto.SerializeToString()
    library, tokenizer = (
        SentencePieceProcessor(model_proto=content),
        Tokenizer.from_files({"tokenizer.model": content}),
    )
    text = "and the river in the Seine"
    assert "▁the" not in library.encode_as_pieces(text)
    assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text)


def test_the_unknown_token_is_a_special_one() -> None:
    library = sentencepiece_library("composed_bpe")
    ids = OURS["composed_bpe"].encode("the ☃", add_special_tokens=False)
    assert library.unk_id() in ids
    assert OURS["composed_bpe"].decode(ids) == "the "


def test_a_name_given_twice_is_refused() -> None:
    config = {"added_tokens_decoder": {"7": {"content": "▁the", "special": True}}}
    with pytest.raises(HeadraceError, match="holds one piece twice"):
        Tokenizer.from_files(sentencepiece_files("llama_like", config))


def test_an_unknown_token_that_no_piece_is_is_refused() -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_model("llama_like"))
    proto.trainer_spec.unk_id = 9999
    with pytest.raises(HeadraceError, match="the unknown token's id 9999, which no piece has"):
        Tokenizer.from_files({"tokenizer.model": proto.SerializeToString()})


@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    content = bytearray(sentencepiece_model("llama_like"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with contextlib.suppress(HeadraceError):
        Tokenizer.from_files({"tokenizer.model": bytes(content[:cut])})


def test_a_file_cut_short_is_refused() -> None:
    with pytest.raises(HeadraceError, match="ends beyond the file"):
        Tokenizer.from_files({"tokenizer.model": sentencepiece_model("llama_like")[:-1]})


@pytest.mark.parametrize("kind", ["word", "char"])
def test_other_kinds_of_model_are_refused(kind: str) -> None:
    with pytest.raises(HeadraceError, match="BPE and unigram models are supported"):
        Tokenizer.from_files({"tokenizer.model": train(model_type=kind, vocab_size=100)})


def test_spaces_after_words_are_refused() -> None:
    model = train(model_type="bpe", treat_whitespace_as_suffix=True)
    with pytest.raises(HeadraceError, match="writes a word's space after it"):
        Tokenizer.from_files({"tokenizer.model": model})


def test_content_of_another_kind_is_named() -> None:
    with pytest.raises(
        HeadraceError, match=r"tokenizer\.model is neither a SentencePiece model nor a tiktoken"
    ):
        Tokenizer.from_files({"tokenizer.model": b"version https://git-lfs.github.com/spec/v1\n", "x": b""})


def test_tokenizer_json_counts_before_the_model() -> None:
    from small_tokenizers import byte_level, files_of

    files = {**files_of(byte_level()), **sentencepiece_files("llama_like")}
    assert (
        Tokenizer.from_files(files).vocab_size
        == json.loads(byte_level().to_str())["added_tokens"][-1]["id"] + 1
    )
