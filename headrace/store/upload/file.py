"""Opening a file that is uploaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError
from headrace.store.errors import StoreError
from headrace.store.upload.plan import LocalFile


class CannotReadFile(HeadraceError):
    """A file that is to be uploaded cannot be read, or is gone."""


@contextmanager
def reading(file: LocalFile) -> Iterator[None]:
    """Raises CannotReadFile for what the system says inside."""
    try:
        yield
    except OSError as error:
        raise CannotReadFile(
            f"{file.path} cannot be read: {error.strerror or error}.",
            remedy="Check its permissions, and that nobody else works in the folder; then push again.",
        ) from None


@contextmanager
def opened_file(file: LocalFile, uri: str) -> Iterator[int]:
    """The descriptor of a file that goes to `uri`. Raises StoreError."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(
            uri, f"{file.path} cannot be read: {error.strerror}.", remedy="Check the file."
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
