"""What the suite for all stores knows of one of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Place:
    """A running store with room for models.

    Attributes:
        uri: where models may lie; each test's model gets a name below it.
        environment: the variables that lead there; None unsets one.
        put: how a folder gets to a URI where `headrace push` does not write (a web server, a hub); None where it does.
        lists: whether it has listings; a web server has none, so nothing can be found or pulled by prefix there.
        describes: names of settings that `headrace check` must tell of it.
    """

    uri: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    put: Callable[[Path, str], None] | None = None
    lists: bool = True
    describes: tuple[str, ...] = ()

    @contextmanager
    def entered(self) -> Iterator[pytest.MonkeyPatch]:
        """This process with the place's variables."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                if value is None:
                    patch.delenv(name, raising=False)
                else:
                    patch.setenv(name, value)
            yield patch

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that begins with none of them."""
        return {name: value for name, value in self.environment.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Pushed:
    """A model that lies in a store.

    Attributes:
        folder: where its files are here, to be compared with.
    """

    place: Place
    uri: str
    folder: Path
