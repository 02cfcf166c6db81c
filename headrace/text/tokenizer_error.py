"""The error of tokenizer files that cannot be used."""

from headrace.errors import HeadraceError


class TokenizerError(HeadraceError):
    """The tokenizer's files cannot be used."""
