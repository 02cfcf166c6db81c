"""Messages hold names from files and stores, which may be anything; what is shown of them commands no terminal."""

import copy
import pickle

import pytest

from headrace.errors import HeadraceError, printable
from headrace.store.errors import NotFound
from headrace.stream.checkpoint.header import BadHeader
from headrace.stream.library.indexing import BadIndex
from headrace.stream.ranks.errors import PeerLost


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe ⚙ 重", "größe ⚙ 重"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\0b\x7f\r\t", "a\\x00b\\x7f\\r\\t"),
        ("a\u202eb", "a\\u202eb"),
        ("a\udcffb", "a\\udcffb"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_what_commands_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    error = HeadraceError(f"{text}: no.", remedy=f"Rename {text}.")
    assert str(error) == f"{shown}: no. Rename {shown}."


def test_a_key_with_a_line_break_cannot_begin_a_line_of_its_own() -> None:
    error = NotFound("s3://bucket/a\nERROR: b", "There is no such object.")
    assert str(error) == "s3://bucket/a\\nERROR: b: There is no such object."
    assert error.uri == "s3://bucket/a\nERROR: b"


@pytest.mark.parametrize(
    "error",
    [
        HeadraceError("No.", remedy="Do."),
        NotFound("s3://b/k", "Gone.", remedy="Look.", status=404, code="NoSuchKey", request_id="R"),
        BadHeader("s3://b/k", "cut off."),
        BadIndex("An index.", remedy="Another."),
        PeerLost(3, "its process ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_of_another_process_as_it_was(error: HeadraceError) -> None:
    # An error that cannot be unpickled makes a pool of processes wait for ever.
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
