"""The engine's end of the channel while a model loads: several threads send, one receives."""

import threading
from typing import Protocol

from headrace.ipc.messages import EngineMessage, FrontMessage


class Channel(Protocol):
    """What an engine needs of its channel; one thread owns it."""

    def send(self, message: EngineMessage) -> None:
        """Queue a message; never blocks."""

    def receive(self, timeout_s: float | None) -> FrontMessage | None:
        """The next message; None if none came within `timeout_s` (None waits without end, 0 not at all)."""


class SharedChannel:
    """A channel for all threads: nobody waits within it, so that nobody waits for it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def send(self, message: EngineMessage) -> None:
        """Queue a message."""
        with self._lock:
            self._channel.send(message)

    def receive(self) -> FrontMessage | None:
        """The next message, if there is one."""
        with self._lock:
            return self._channel.receive(0)
