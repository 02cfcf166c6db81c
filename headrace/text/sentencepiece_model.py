"""Read a SentencePiece model file: the pieces, and the settings of the normalizer and trainer that encoding needs.

The format is Protocol Buffers (sentencepiece_model.proto); of its wire format four things are needed, so this reads
them itself and the library that made the file stays out of the installation.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.text.tokenizer_error import TokenizerError

SENTENCEPIECE_FILE = "tokenizer.model"


class PieceKind(IntEnum):
    """SentencePiece.Type of the format."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelKind(IntEnum):
    """TrainerSpec.ModelType of the format."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its position."""

    text: str
    score: float
    kind: int


@dataclass(slots=True)
class SentencePieceModel:
    """What the file says; where it is silent, the format's defaults.

    Attributes:
        unk_id, bos_id, eos_id: below 0 where the model has no such token.
        charsmap: the normalizer's compiled table of characters, b"" for none.
        add_dummy_prefix: a text begins with a space that is not written.
        remove_extra_whitespaces: spaces at the ends, and all but one between words, are dropped.
        treat_whitespace_as_suffix: a word's space is at its end.
    """

    pieces: list[Piece] = field(default_factory=list)
    model_kind: int = ModelKind.UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_piece: str = "<unk>"
    bos_piece: str = "<s>"
    eos_piece: str = "</s>"
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    treat_whitespace_as_suffix: bool = False

    @property
    def named_tokens(self) -> dict[str, str]:
        """unk_token, bos_token and eos_token, as far as the model has them."""
        names = (
            ("unk_token", self.unk_id, self.unk_piece),
            ("bos_token", self.bos_id, self.bos_piece),
            ("eos_token", self.eos_id, self.eos_piece),
        )
        return {name: piece for name, token_id, piece in names if token_id >= 0}


# Number in the format → our field.
_TRAINER_FIELDS = {
    3: "model_kind",
    24: "treat_whitespace_as_suffix",
    35: "byte_fallback",
    40: "unk_id",
    41: "bos_id",
    42: "eos_id",
    45: "unk_piece",
    46: "bos_piece",
    47: "eos_piece",
}
_NORMALIZER_FIELDS = {
    2: "charsmap",
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}

_Value = int | float | bytes


def read_sentencepiece(content: bytes, *, with_pieces: bool = True) -> SentencePieceModel:
    """The model in a file's content. Without its pieces it is read several times faster.

    Raises TokenizerError for content that is no such file.
    """
    model = SentencePieceModel()
    try:
        for number, value in _fields(content):
            if number == 1 and with_pieces:
                model.pieces.append(_piece(_bytes(value)))
            elif number == 2:
                _set_fields(model, _bytes(value), _TRAINER_FIELDS)
            elif number == 3:
                _set_fields(model, _bytes(value), _NORMALIZER_FIELDS)
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise TokenizerError(
            f"{SENTENCEPIECE_FILE} is neither a SentencePiece model nor a tiktoken vocabulary: {error}.",
            remedy="Upload the model's file again.",
        ) from error
    return model


def _piece(content: bytes) -> Piece:
    text, score, kind = b"", 0.0, int(PieceKind.NORMAL)
    for number, value in _fields(content):
        if number == 1:
            text = _bytes(value)
        elif number == 2:
            score = float(value)
        elif number == 3:
            kind = int(value)
    return Piece(text.decode(), score, kind)


def _set_fields(model: SentencePieceModel, content: bytes, names: dict[int, str]) -> None:
    for number, value in _fields(content):
        name = names.get(number)
        if name is None:
            continue
        kind = type(getattr(model, name))
        if kind is str:
            setattr(model, name, _bytes(value).decode())
        elif kind is bytes:
            setattr(model, name, _bytes(value))
        else:
            setattr(model, name, kind(_signed(value)))


def _fields(content: bytes) -> Iterator[tuple[int, _Value]]:
    """(number, value) of each field of one message."""
    position, end = 0, len(content)
    while position < end:
        tag, position = _varint(content, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            number_value, position = _varint(content, position)
            yield number, number_value
        elif wire_type == 2:
            size, position = _varint(content, position)
            if size > end - position:
                raise ValueError(f"a field of {size} bytes ends beyond the file")
            yield number, content[position : position + size]
            position += size
        elif wire_type == 5:
            yield number, float(struct.unpack_from("<f", content, position)[0])
            position += 4
        elif wire_type == 1:
            yield number, float(struct.unpack_from("<d", content, position)[0])
            position += 8
        else:
            raise ValueError(f"a field has the unknown wire type {wire_type}")


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = content[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than ten bytes")


def _bytes(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type than the format says")
    return value


def _signed(value: _Value) -> int:
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number
