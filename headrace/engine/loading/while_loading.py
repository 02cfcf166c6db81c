"""The step loop while weights arrive: the first prompts are computed layer by layer behind the bytes.

What it computes is kept back: no token leaves before every byte is in place and proved.
"""

import logging
from typing import TYPE_CHECKING

from headrace.engine.loading.arriving import LOOK_EVERY_S, Arriving
from headrace.engine.loading.inbox import Inbox, Stopped
from headrace.engine.loading.wave import Wave
from headrace.errors import HeadraceError
from headrace.ipc.messages import EngineMessage
from headrace.ipc.timeline import Timeline

if TYPE_CHECKING:
    from headrace.engine.engine import Engine
    from headrace.stream.transfer.transfer import Transfer


_logger = logging.getLogger(__name__)


def compute_while_loading(
    engine: "Engine", inbox: Inbox, arriving: Arriving, transfer: "Transfer", timeline: Timeline
) -> list[EngineMessage]:
    """Compute what is asked for until the transfer is over, and then until somebody has a token or nobody asks.

    A request that comes, or goes, while a step waits for bytes makes that step be planned anew, so that all who wait
    are computed together; what is computed already stays where the new plan has it too. A step that fails ends its requests, and not the load.

    Returns:
        What to send once every byte is proved; nothing where nobody asked for anything.

    Raises:
        Stopped: the front wants no more.
        HeadraceError: what ended the transfer.
    """
    answers: list[EngineMessage] = []
    wave = Wave(
        engine.runner, arriving, engine.chunk_tokens, is_outdated=lambda step: inbox.outdates(step, engine)
    )
    begun_s: float | None = None
    while True:
        is_over = transfer.wait_end(0)
        inbox.read(engine)
        if is_over and (answers or not engine.scheduler.has_work):
            return answers
        if engine.scheduler.has_work:
            begun_s = timeline.now() if begun_s is None else begun_s
            try:
                new = engine.step_behind(wave)
            except (HeadraceError, Stopped):
                raise
            except Exception as error:
                _logger.exception("A step failed while the model was loading.")
                wave.forget()
                inbox.fail_all(engine, f"The engine failed while it computed this request: {error}")
                continue
            if new and not answers:
                timeline.add("first prompt", begun_s, timeline.now())
            answers += new
        else:
            transfer.wait_end(LOOK_EVERY_S)
