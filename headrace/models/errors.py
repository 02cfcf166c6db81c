"""What can be wrong with a checkpoint before any weight is read."""

from headrace.errors import HeadraceError


class UnsupportedModel(HeadraceError):
    """The checkpoint asks for something that no family here computes."""


class InvalidConfig(HeadraceError):
    """config.json lacks a field, or a field holds something that no model can have; the message names the field."""


class MissingParameter(HeadraceError):
    """A forward pass was built without a tensor that its layout names, or with one of another shape or dtype."""
