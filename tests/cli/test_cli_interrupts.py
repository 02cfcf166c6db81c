"""Signals that end a command let it end what it started."""

import signal
from collections.abc import Iterator

import pytest

from headrace.cli.interrupts import Terminated, sigterm_as_interrupt

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As a shell gives them to a command, whoever runs these tests; put back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_the_signal_is_an_exception_within_the_block(number: signal.Signals) -> None:
    with pytest.raises(Terminated), sigterm_as_interrupt():
        signal.raise_signal(number)


@BOTH
def test_another_one_does_not_disturb_the_way_out(number: signal.Signals) -> None:
    ended = []

    def command() -> None:
        with sigterm_as_interrupt():
            try:
                signal.raise_signal(number)
            finally:
                for again in (signal.SIGTERM, signal.SIGHUP):
                    signal.raise_signal(again)
                ended.append("all")

    with pytest.raises(Terminated):
        command()
    assert ended == ["all"]


@BOTH
def test_one_whose_exception_was_dropped_is_told_when_asked_and_at_the_end(number: signal.Signals) -> None:
    told = []

    def command() -> None:
        with sigterm_as_interrupt() as insist:
            with pytest.raises(Terminated):
                signal.raise_signal(number)
            with pytest.raises(Terminated):
                insist()
            told.append("when asked")

    with pytest.raises(Terminated):
        command()
    assert told == ["when asked"]


@BOTH
def test_handlers_are_put_back(number: signal.Signals) -> None:
    with sigterm_as_interrupt():
        assert signal.getsignal(number) is not signal.SIG_DFL
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with sigterm_as_interrupt():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
