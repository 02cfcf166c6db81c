"""The start-up table of the engine that serves now, from what its client knows."""

from headrace.ipc.messages import PhaseTime
from headrace.server.life.engine_state import EngineState
from headrace.server.seen.startup_table import PhaseRow, on_one_clock, startup_rows


def startup_phases(state: EngineState) -> tuple[PhaseTime, ...]:
    """The phases of engine and front, counted from the server's exec, or from that of an engine that was started again.

    () while it loads.
    """
    if state.ready is None:
        return ()
    return on_one_clock(state.ready.phases, state.engine_started_s, state.timeline.phases())


def ready_s(state: EngineState) -> float:
    """When requests could be answered at once, on the same clock; 0 while it loads."""
    if state.ready is None:
        return 0.0
    # A tokenizer that takes longer than the weights is waited for.
    return max([state.timeline.since(state.ready_at_s), *(phase.end_s for phase in startup_phases(state))])


def startup_table(state: EngineState) -> tuple[PhaseRow, ...]:
    """The rows; () while it loads."""
    return startup_rows(startup_phases(state), ready_s(state)) if state.ready is not None else ()
