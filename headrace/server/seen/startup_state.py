"""The start-up table of the engine that serves now, from what its client knows."""

from headrace.ipc.messages import PhaseTime
from headrace.server.life.engine_client import EngineClient
from headrace.server.seen.startup_table import PhaseRow, on_one_clock, startup_rows


def startup_phases(client: EngineClient) -> tuple[PhaseTime, ...]:
    """The phases of engine and front, counted from the server's exec, or from that of an engine that was started again.

    () while it loads.
    """
    if client.ready is None:
        return ()
    return on_one_clock(client.ready.phases, client.engine_started_s, client.timeline.phases())


def ready_s(client: EngineClient) -> float:
    """When requests could be answered at once, on the same clock; 0 while it loads."""
    if client.ready is None:
        return 0.0
    # A tokenizer that takes longer than the weights is waited for.
    return max([client.timeline.since(client.ready_at_s), *(phase.end_s for phase in startup_phases(client))])


def startup_table(client: EngineClient) -> tuple[PhaseRow, ...]:
    """The rows; () while it loads."""
    return startup_rows(startup_phases(client), ready_s(client)) if client.ready is not None else ()
