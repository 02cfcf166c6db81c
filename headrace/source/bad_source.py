"""The error of a model's name. Apart from the parsers, which are a file for each scheme."""

from headrace.errors import HeadraceError


class BadSource(HeadraceError):
    """The model's name cannot be understood or is not supported."""
