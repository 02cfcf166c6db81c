"""From one token to its piece of text: the vocabulary's decoder, taken apart so that a stream can use it.

A decoder of the `tokenizers` library maps a whole list of tokens to a text. Here the same steps are split
into what can be said of each token alone (a Piece) and the little that depends on its neighbours
(DecodeRules), so that a stream costs the same per token however long it is.
"""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.text.tokenizer_error import TokenizerError

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder

# Text, or raw bytes that may be only a part of a UTF-8 character.
Piece = str | bytes

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """What depends on more than one token.

    Attributes:
        first_differs: the first token of a text loses its leading space, or gets no separator before it.
        mark_each_byte: invalid UTF-8 gives one U+FFFD per byte (byte fallback), not one per broken character.
        strip_character, strip_count: how many of which character are dropped from the start of the text.
    """

    first_differs: bool = False
    mark_each_byte: bool = False
    strip_character: str = ""
    strip_count: int = 0


def _mark_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error("headrace.mark-each-byte", _mark_each_byte)


def take_characters(data: bytes, rules: DecodeRules, *, final: bool = False) -> tuple[str, bytes]:
    """The text of the characters that are certain, and the bytes of a last one that is still incomplete.

    What can no longer become a character is certain too, and is U+FFFD. With `final` no bytes are left.
    """
    errors = "headrace.mark-each-byte" if rules.mark_each_byte else "replace"
    text, used = codecs.utf_8_decode(data, errors, final)
    return text, data[used:]


class PieceTable:
    """The piece of every token of one vocabulary, worked out when first needed and then kept."""

    __slots__ = ("_byte_fallback", "_byte_level", "_later", "_per_token", "_token_of", "rules")

    def __init__(self, decoder: "Decoder | None", token_of: Callable[[int], str | None]) -> None:
        """`token_of` gives a token's form in the vocabulary, None for ids outside it.

        Raises TokenizerError for a decoder that cannot be followed token by token.
        """
        steps = None if decoder is None else _flatten(_describe(decoder))
        self.rules = _rules(steps)
        kinds = [step["type"] for step in steps or ()]
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._per_token = _per_token_decoder(steps)
        self._token_of = token_of
        self._later: dict[int, Piece | None] = {}

    def piece(self, token_id: int, *, first: bool = False) -> Piece | None:
        """What the token adds to the text; None for an id without a token. `first`: no token came before."""
        if first and self.rules.first_differs:
            return self._work_out(token_id, first=True)
        if token_id not in self._later:
            self._later[token_id] = self._work_out(token_id, first=False)
        return self._later[token_id]

    def _work_out(self, token_id: int, *, first: bool) -> Piece | None:
        token = self._token_of(token_id)
        if token is None:
            return None
        if self._per_token is not None:
            token = self._per_token([token], first)
        if self._byte_level:
            return byte_level_bytes(token)
        if self._byte_fallback and (byte := _fallback_byte(token)) is not None:
            return byte
        return token


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a byte-level token stands for (GPT-2's printable alphabet).

    A token with any other character (an added token) stands for itself, as in `tokenizers`' ByteLevel.
    """
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters are their own bytes; the other 68 bytes follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
_CHARACTER_OF_BYTE = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}


def byte_level_token(data: bytes) -> str:
    """The byte-level token that stands for `data`."""
    return "".join(_CHARACTER_OF_BYTE[byte] for byte in data)


def _fallback_byte(token: str) -> bytes | None:
    """b"\\x0a" for "<0x0A>", None for any other token."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return bytes.fromhex(token[3:5])
    except ValueError:
        return None


def _describe(decoder: "Decoder") -> dict[str, Any]:
    # The library offers a decoder's settings only in its serialised form.
    import json

    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return state


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten(part)]


def _rules(steps: list[dict[str, Any]] | None) -> DecodeRules:
    if steps is None:
        return DecodeRules(first_differs=True)  # tokens are joined by spaces
    kinds = [step["type"] for step in steps]
    strip_character, strip_count = "", 0
    # Tokens are one text after Fuse or ByteLevel; byte fallback has to know its neighbours, so it ends
    # what can be done token by token.
    phase = "token"
    for step, kind in zip(steps, kinds, strict=True):
        if kind in ("Fuse", "ByteLevel"):
            phase = "text"
        elif kind == "ByteFallback" and phase == "token":
            phase = "bytes"
        elif kind in _PER_TOKEN and phase == "token":
            pass
        elif kind == "Strip" and phase == "text" and step["stop"] == 0 and not strip_count:
            strip_character, strip_count = step["content"], step["start"]
        else:
            raise TokenizerError(
                f"The decoder in tokenizer.json has a step {kind} that cannot be followed while text streams "
                f"(its steps: {', '.join(kinds)}).",
                remedy="Supported are ByteLevel, Metaspace, and Replace, Strip, ByteFallback and Fuse in the "
                "order that Llama and Gemma use.",
            )
    return DecodeRules(
        first_differs="Metaspace" in kinds,
        mark_each_byte="ByteFallback" in kinds,
        strip_character=strip_character,
        strip_count=strip_count,
    )


def _per_token_decoder(
    steps: list[dict[str, Any]] | None,
) -> Callable[[list[str], bool], str] | None:
    """The steps before the tokens meet, carried out by the library itself."""
    if steps is None:
        return lambda tokens, first: tokens[0] if first else " " + tokens[0]
    from tokenizers import decoders

    parts = []
    for step in steps:
        if step["type"] not in _PER_TOKEN:
            break
        parts.append(_PER_TOKEN[step["type"]](step))
    if not parts:
        return None
    decoder = decoders.Sequence(parts)

    def decode(tokens: list[str], first: bool) -> str:
        # An empty token before it makes a token a later one, and adds nothing.
        text: str = decoder.decode(tokens if first else ["", *tokens])
        return text

    return decode


def _replace(step: Mapping[str, Any]) -> "Decoder":
    from tokenizers import Regex, decoders

    pattern = step["pattern"]
    return decoders.Replace(
        pattern["String"] if "String" in pattern else Regex(pattern["Regex"]), step["content"]
    )


def _strip(step: Mapping[str, Any]) -> "Decoder":
    from tokenizers import decoders

    return decoders.Strip(step["content"], step["start"], step["stop"])


def _metaspace(step: Mapping[str, Any]) -> "Decoder":
    from tokenizers import decoders

    return decoders.Metaspace(step["replacement"], step["prepend_scheme"], step["split"])


_PER_TOKEN: dict[str, Callable[[Mapping[str, Any]], "Decoder"]] = {
    "Replace": _replace,
    "Strip": _strip,
    "Metaspace": _metaspace,
}
