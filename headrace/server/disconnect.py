"""Work for a client that may leave."""

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class WhileConnected(Response):
    """A response that the application `answer` works out and sends; it is cancelled when the client leaves.

    `answer` may raise before it sends: the application's error handlers answer then. The request's body
    must have been read.
    """

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
