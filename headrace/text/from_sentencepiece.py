"""A SentencePiece model as a tokenizer of the `tokenizers` library, which encodes and decodes as SentencePiece does."""

import re
from collections.abc import Mapping
from dataclasses import replace

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from headrace.text.sentencepiece_model import (
    SENTENCEPIECE_FILE,
    ModelKind,
    PieceKind,
    SentencePieceModel,
    read_sentencepiece,
)
from headrace.text.tokenizer_error import TokenizerError

_SPACE = "▁"


def build_from_sentencepiece(
    content: bytes, *, legacy: bool, prefix_space: bool | None, names: Mapping[int, str]
) -> Tokenizer:
    """The tokenizer of a model file's content; control pieces are special tokens in it.

    `legacy`: each text between special tokens begins with the unwritten space, as SentencePiece itself would have
    it; otherwise only the first does, as models newer than Llama 2 were trained. `prefix_space`: whether there is
    such a space at all; None leaves that to the model. `names`: id → token, for pieces that were kept free for a
    later use and have another name since.

    Raises TokenizerError for a malformed file or a kind of model that is not supported.
    """
    model = read_sentencepiece(content)
    if prefix_space is not None:
        model.add_dummy_prefix = prefix_space
    _rename(model, names)
    _check(model)
    tokenizer = Tokenizer(_bpe(model) if model.model_kind == ModelKind.BPE else _unigram(model))
    tokenizer.normalizer = _normalizer(model, legacy)
    tokenizer.pre_tokenizer = _pre_tokenizer(model, legacy)
    tokenizer.decoder = _decoder(model)
    special = [piece.text for piece in model.pieces if piece.kind == PieceKind.CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def _rename(model: SentencePieceModel, names: Mapping[int, str]) -> None:
    for token_id, name in names.items():
        if 0 <= token_id < len(model.pieces):
            model.pieces[token_id] = replace(model.pieces[token_id], text=name)


def _check(model: SentencePieceModel) -> None:
    texts = {piece.text for piece in model.pieces}
    problem = ""
    if not model.pieces:
        problem = "holds no pieces"
    elif model.model_kind not in (ModelKind.BPE, ModelKind.UNIGRAM):
        problem = f"is of SentencePiece's kind {model.model_kind}; BPE and unigram models are supported"
    elif model.treat_whitespace_as_suffix or not model.escape_whitespaces:
        problem = "writes a word's space after it, or not at all, which is not supported"
    elif len(texts) != len(model.pieces):
        problem = "holds one piece twice"
    elif not 0 <= model.unk_id < len(model.pieces):
        problem = f"names the unknown token's id {model.unk_id}, which no piece has"
    if problem:
        raise TokenizerError(
            f"{SENTENCEPIECE_FILE} {problem}.",
            remedy="Add a tokenizer.json (transformers' save_pretrained writes it).",
        )


def _bpe(model: SentencePieceModel) -> models.BPE:
    """The pair that makes the piece with the best score is joined first."""
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    joined = {
        piece.text: (-piece.score, index)
        for index, piece in enumerate(model.pieces)
        if piece.kind == PieceKind.NORMAL
    }
    merges = sorted(
        (joined[text], text[:cut], text[cut:])
        for text in joined
        for cut in range(1, len(text))
        if text[:cut] in joined and text[cut:] in joined
    )
    return models.BPE(
        ids,
        [(left, right) for _, left, right in merges],
        unk_token=model.pieces[model.unk_id].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        # A user-defined piece is taken whole, though no pairs lead to it.
        ignore_merges=bool(_user_defined(model)),
    )


def _unigram(model: SentencePieceModel) -> models.Unigram:
    return models.Unigram(
        [(piece.text, piece.score) for piece in model.pieces],
        unk_id=model.unk_id,
        byte_fallback=model.byte_fallback,
    )


def _user_defined(model: SentencePieceModel) -> list[str]:
    return [piece.text for piece in model.pieces if piece.kind == PieceKind.USER_DEFINED]


def _normalizer(model: SentencePieceModel, legacy: bool) -> normalizers.Normalizer:
    """In SentencePiece's order: characters, extra spaces, the unwritten space, spaces as their symbol."""
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if model.add_dummy_prefix and legacy:
        steps.append(normalizers.Prepend(" "))
    steps.append(normalizers.Replace(" ", _SPACE))
    return normalizers.Sequence(steps)


def _pre_tokenizer(model: SentencePieceModel, legacy: bool) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if model.add_dummy_prefix and not legacy:
        steps.append(pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first", split=False))
    user_defined = _user_defined(model)
    if user_defined:
        longest_first = sorted(user_defined, key=len, reverse=True)
        pattern = "|".join(re.escape(text) for text in longest_first)
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    return pre_tokenizers.Sequence(steps)


def _decoder(model: SentencePieceModel) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
