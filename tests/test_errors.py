"""Messages hold names from files and stores, which may be anything; what is shown of them commands no terminal."""

import pytest

from headrace.errors import HeadraceError, printable
from headrace.store.errors import NotFound


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
