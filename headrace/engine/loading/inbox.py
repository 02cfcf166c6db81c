"""What the front asks for while a model loads. It outlives a load that begins anew."""

from typing import TYPE_CHECKING

from headrace.engine.loading.shared_channel import SharedChannel
from headrace.engine.scheduling.request import Step
from headrace.ipc.messages import Abort, FlushCache, FrontMessage, Generate, Stop

if TYPE_CHECKING:
    from headrace.engine.engine import Engine


class Stopped(Exception):
    """The front wants the engine to end, loaded or not."""


class Inbox:
    """Takes requests for the engine of the present load, and gives them to the next one where that fails.

    What changes the weights waits until they are there, and whatever comes after it waits behind it.
    """

    def __init__(self, channel: SharedChannel) -> None:
        self._channel = channel
        self._requests: dict[str, Generate] = {}  # in the order in which they came
        self._postponed: list[FrontMessage] = []

    def hand_over(self, engine: "Engine") -> None:
        """Queue what an earlier engine had, in a new one."""
        for request in list(self._requests.values()):
            self._queue(request, engine)

    def read(self, engine: "Engine") -> None:
        """Take all messages that there are. Raises Stopped."""
        while (message := self._channel.receive()) is not None:
            self._take(message, engine)

    def outdates(self, step: Step, engine: "Engine") -> bool:
        """Read, and tell whether a step that has only begun should be planned anew: somebody could join it, or has left.

        Raises Stopped.
        """
        known = set(self._requests)
        self.read(engine)
        if self._requests.keys() - known and engine.has_room_beside(step):
            return True
        gone = known - self._requests.keys()
        return any(request.rid in gone for request in step.requests())

    def fail_all(self, engine: "Engine", text: str) -> None:
        """End every request that was taken."""
        for failure in engine.fail_all(500, "engine_error", text):
            del self._requests[failure.rid]
            self._channel.send(failure)

    def close(self, engine: "Engine") -> None:
        """The model is loaded: the engine takes what was postponed before it reads messages itself."""
        engine.postponed.extend(self._postponed)
        self._postponed.clear()
        self._requests.clear()

    def _take(self, message: FrontMessage, engine: "Engine") -> None:
        match message:
            case Stop():
                raise Stopped
            case Abort(rid) if rid in self._requests:
                del self._requests[rid]
                engine.take(message)
            case _ if self._postponed:
                self._postponed.append(message)
            case Generate():
                self._queue(message, engine)
            case Abort():
                pass  # of a request that has ended, or that was refused
            case FlushCache():
                if (answer := engine.take(message)) is not None:
                    self._channel.send(answer)
            case _:
                self._postponed.append(message)

    def _queue(self, request: Generate, engine: "Engine") -> None:
        self._requests[request.rid] = request
        refusal = engine.take(request)
        if refusal is not None:
            del self._requests[request.rid]
            self._channel.send(refusal)
