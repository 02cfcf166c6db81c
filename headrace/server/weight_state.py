"""What the engine has in memory, and the change of weights that is under way: the front's view. No engine's own."""

import asyncio

import msgspec

from headrace.ipc.messages import EVERYTHING, WeightsAnswer
from headrace.ipc.options import EngineOptions
from headrace.server.errors import ApiError
from headrace.server.options import DEFAULT_WEIGHT_VERSION


class WeightState:
    """Of one server, through all of its engines. Lives on the event loop.

    Attributes:
        occupied: what is in the engine's memory.
        version: what the one who asked for the weights calls them; SGLang's `weight_version`.
        changes: "done", "refused" (nothing was changed), "lost" (the engine ended meanwhile) → how often, so far.
    """

    def __init__(self, version: str = DEFAULT_WEIGHT_VERSION) -> None:
        self.occupied = EVERYTHING
        self.version = version
        self.changes = dict.fromkeys(("done", "refused", "lost"), 0)
        self._change: asyncio.Future[WeightsAnswer] | None = None

    @property
    def is_changing(self) -> bool:
        """A change is under way."""
        return self._change is not None

    @property
    def is_complete(self) -> bool:
        """Nothing was given back: requests can be computed."""
        return len(self.occupied) == len(EVERYTHING)

    def begin(self) -> "asyncio.Future[WeightsAnswer]":
        """Begin a change; its answer, to be waited for or not. Raises ApiError 409: there is one."""
        if self._change is not None:
            raise ApiError(
                409,
                "Another change of weights or memory is under way. Ask again when it has been answered.",
                code="change_under_way",
            )
        answer: asyncio.Future[WeightsAnswer] = asyncio.get_running_loop().create_future()
        # An asker who leaves does not end the change, and nobody may be left to hear how it failed.
        answer.add_done_callback(lambda ended: ended.exception())
        self._change = answer
        return answer

    def take(self, answer: WeightsAnswer) -> None:
        """The engine has answered."""
        self.occupied = answer.occupied
        change, self._change = self._change, None
        if change is not None:
            self.changes["done" if answer.success else "refused"] += 1
            change.set_result(answer)

    def lose(self, error: ApiError) -> None:
        """The engine is gone; the next one loads everything."""
        self.occupied = EVERYTHING
        change, self._change = self._change, None
        if change is not None:
            self.changes["lost"] += 1
            change.set_exception(error)


def options_for(options: EngineOptions, model_uri: str) -> EngineOptions:
    """For an engine that is started again: what is served now, with the tokenizer of the start.

    A change of weights brings none, and its checkpoint need not have one.
    """
    if model_uri == options.model:
        return options
    return msgspec.structs.replace(
        options,
        model=model_uri,
        tokenizer_path=options.tokenizer_path or options.model,
        load_format="auto" if options.load_format == "dummy" else options.load_format,
    )
