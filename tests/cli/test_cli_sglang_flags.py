"""SGLang's flags that are not Headrace's: noted, refused, never in silence."""

import shlex
from collections import Counter

import pytest

from headrace.cli.flags import add_flags
from headrace.cli.parser import Parser, UsageError
from headrace.cli.sglang_flags import notes_on_foreign_flags
from headrace.cli.sglang_ignored import NO_EFFECT
from headrace.cli.sglang_unsupported import UNSUPPORTED


def notes(line: str) -> tuple[str, ...]:
    parser = Parser(prog="headrace serve")
    add_flags(parser)
    args = parser.parse_args(["s3://b/m", *shlex.split(line)])
    assert args.model == "s3://b/m"
    return notes_on_foreign_flags(args.foreign)


@pytest.mark.parametrize("flag", [flag for group in NO_EFFECT for flag in group.switches])
def test_a_switch_without_effect_takes_no_value_and_is_noted(flag: str) -> None:
    (note,) = notes(flag)
    assert note.startswith(f"{flag} has no effect here: ")


@pytest.mark.parametrize("flag", [flag for group in NO_EFFECT for flag in group.values])
def test_a_flag_without_effect_takes_its_value_and_is_noted(flag: str) -> None:
    (note,) = notes(f"{flag} 17")
    assert note.startswith(f"{flag} has no effect here: ")


@pytest.mark.parametrize("flag", [flag for group in NO_EFFECT for flag in group.lists])
def test_a_list_without_effect_takes_all_its_values_and_is_noted(flag: str) -> None:
    (note,) = notes(f"{flag} 1 2 4")
    assert note.startswith(f"{flag} has no effect here: ")


@pytest.mark.parametrize(
    "line",
    [flag for group in UNSUPPORTED for flag in (*group.switches, *group.optional)]
    + [f"{flag} 17" for group in UNSUPPORTED for flag in (*group.values, *group.lists, *group.optional)],
)
def test_what_is_not_there_yet_is_refused_by_name(line: str) -> None:
    flag = line.split()[0]
    with pytest.raises(UsageError, match=f"not supported yet, and {flag} asks for it") as refused:
        notes(line)
    assert flag in refused.value.remedy


@pytest.mark.parametrize(
    "line",
    [
        f"{flag} '{value}'"
        for group in UNSUPPORTED
        for flag, value in group.values.items()
        if value is not None
    ],
)
def test_the_value_that_asks_for_nothing_is_accepted_in_silence(line: str) -> None:
    assert notes(line) == ()


def test_a_flag_given_twice_is_noted_once() -> None:
    assert len(notes("--stream-interval 1 --stream-interval 2")) == 1


def test_the_last_of_two_values_does_not_hide_the_first() -> None:
    with pytest.raises(UsageError, match="--tp-size"):
        notes("--tp-size 2 --tp-size 1")


def test_a_flag_without_its_value_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        notes("--attention-backend")
    assert "--attention-backend: expected one argument" in capsys.readouterr().err


def test_no_flag_is_listed_twice() -> None:
    listed = Counter(flag for group in NO_EFFECT for flag in (*group.switches, *group.values, *group.lists))
    listed += Counter(
        flag
        for group in UNSUPPORTED
        for flag in (*group.switches, *group.values, *group.lists, *group.optional)
    )
    assert [flag for flag, count in listed.items() if count > 1] == []
    assert len(listed) > 300
