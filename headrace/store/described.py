"""What a store was told and what it found out, for a person: each setting with where it came from."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.store.base import Store


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is used.

    Attributes:
        name: what it is, in a word or two: "endpoint", "region", "addressing", "principal".
        value: as it is used; of a secret only what may be shown.
        origin: where it came from: a variable's name, a file, "default", "found out".
    """

    name: str
    value: str
    origin: str


@runtime_checkable
class Described(Protocol):
    """A store that tells its settings."""

    def describe(self) -> tuple[Setting, ...]:
        """Endpoint, addressing, region, principal and the like. May look for credentials, asks no store."""


def describe(store: Store) -> tuple[Setting, ...]:
    """The store's settings; none for a store that has none to tell."""
    return store.describe() if isinstance(store, Described) else ()


def masked(identifier: str) -> str:
    """An id that is no secret itself, but short enough to show whose it is: its first and last four characters."""
    return f"{identifier[:4]}…{identifier[-4:]}" if len(identifier) > 12 else "…"
