"""What an engine logs while it loads is a line in the front's log."""

import logging
import threading

import pytest

from headrace.engine.front_log import logged_by_the_front
from headrace.ipc.messages import LogLine

OURS = logging.getLogger("headrace.store.anything")


def test_lines_of_our_modules_are_sent_with_level_and_arguments() -> None:
    sent: list[LogLine] = []
    with logged_by_the_front(sent.append, "info"):
        OURS.warning("%s is %d", "one", 1)
        OURS.info("two")
        OURS.debug("three")
    assert sent == [LogLine("warning", "one is 1"), LogLine("info", "two")]


def test_lines_of_other_threads_are_sent_too() -> None:
    sent: list[LogLine] = []
    with logged_by_the_front(sent.append, "info"):
        thread = threading.Thread(target=OURS.warning, args=("from a worker",))
        thread.start()
        thread.join()
    assert sent == [LogLine("warning", "from a worker")]


def test_an_exception_brings_its_traceback() -> None:
    sent: list[LogLine] = []
    with logged_by_the_front(sent.append, "info"):
        try:
            raise OSError("disk")
        except OSError:
            OURS.exception("It broke")
    assert sent[0].level == "error" and sent[0].text.endswith("OSError: disk")


def test_nothing_is_written_twice_and_afterwards_all_is_as_before(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[LogLine] = []
    with logged_by_the_front(sent.append, "warning"):
        OURS.warning("inside")
    OURS.warning("outside")
    assert [line.text for line in sent] == ["inside"]
    assert [record.message for record in caplog.records] == ["outside"]
