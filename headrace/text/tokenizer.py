"""The tokenizer of one model, built from its files' contents; ids as transformers' AutoTokenizer gives them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.text.pieces import PieceTable
from headrace.text.token_bound import TokenBound, token_bound
from headrace.text.tokenizer_config import (
    TOKENIZER_FILE,
    TokenizerConfig,
    read_tokenizer_config,
    without_mark,
)
from headrace.text.tokenizer_error import TokenizerError

if TYPE_CHECKING:
    import tokenizers

# Characters; about a millisecond's work.
_LONG_TEXT = 1 << 12


class InvalidTextError(HeadraceError):
    """A text that has no UTF-8 form and therefore no tokens; the request must be refused (400)."""


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads at once."""

    def __init__(self, backend: "tokenizers.Tokenizer", config: TokenizerConfig) -> None:
        self._backend = backend
        self._named = config.named_tokens

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, model_type: str | None = None) -> "Tokenizer":
        """Build it from base name → content.

        The vocabulary is tokenizer.json; where there is none, a SentencePiece model (tokenizer.model), a tiktoken
        vocabulary (*.tiktoken, tiktoken.model, tokenizer.model), vocab.json with merges.txt, or tekken.json.
        tokenizer_config.json, special_tokens_map.json and added_tokens.json are read where they are there.
        `model_type` is config.json's; transformers ignores the tokenizer class of some model types.

        Raises TokenizerError where a file is missing or malformed.
        """
        config = read_tokenizer_config(files)
        content = files.get(TOKENIZER_FILE)
        if content is None:
            from headrace.text.vocabulary_files import build_from_vocabulary

            return cls(build_from_vocabulary(files, config), config)
        import tokenizers

        try:
            backend = tokenizers.Tokenizer.from_buffer(without_mark(content))
        except ValueError as error:
            raise TokenizerError(
                f"{TOKENIZER_FILE} cannot be read: {error}.", remedy="Upload the model's file again."
            ) from error
        from headrace.text.tokenizer_setup import apply_config

        apply_config(backend, config, keep_pipeline=b'"ByteLevel"' in content, model_type=model_type)
        return cls(backend, config)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised.

        `add_special_tokens` adds BOS and EOS as tokenizer.json's post-processor says. A rendered chat template holds them
        already and is encoded without. Raises InvalidTextError for text with lone surrogates.
        """
        try:
            if len(text) < _LONG_TEXT:
                return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            # `encode` holds the interpreter's lock all the while: seconds in which no other thread runs.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return encoding.ids
        except TypeError:
            # The library says only that it wants a str; this says where the text is none it can take.
            raise _invalid_text(text) from None

    def fewest_tokens(self, text: str) -> int:
        """Tokens that `text` has at the least, by its length; 0 where this vocabulary allows no such claim."""
        return 0 if self._token_bound is None else self._token_bound.fewest_tokens(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`, each in 0 ... 2**32 - 1; ids outside the vocabulary add nothing."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @property
    def bos_token(self) -> str | None:
        return self._named.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._named.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self._backend.token_to_id(self.eos_token)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, the added ones included; the model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that `skip_special_tokens` leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def _token_bound(self) -> TokenBound | None:
        # When first asked for, as it takes a look at the whole vocabulary.
        return token_bound(self._backend)

    @cached_property
    def pieces(self) -> PieceTable:
        """What each token adds to a text that streams. Raises TokenizerError for an unsupported decoder."""
        return PieceTable(self._backend.decoder, self._backend.id_to_token)


def _invalid_text(text: str) -> InvalidTextError:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return InvalidTextError(
            f"The text holds half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is no character.",
            remedy="Send valid Unicode text.",
        )
    raise AssertionError("valid text was refused by the tokenizer")
