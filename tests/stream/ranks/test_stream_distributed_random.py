"""Ranks that load together under random faults, wants, orders, limits and ends: right bytes or a clear end, no hang."""

import random
import threading
from collections.abc import Iterator

import pytest

from headrace.errors import HeadraceError
from headrace.stream.library.memory_limit import MemoryGate
from headrace.stream.plan import Columns, Placement, placed_bytes, plan_reads
from headrace.stream.ranks.start import start_distributed
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.ledger import Cancelled
from tests.faults import server as faults
from tests.faults.opening import only_object, store_of
from tests.faults.server import Behaviour, FaultServer, fault_server
from tests.profiles import examples
from tests.stream.thread_group import ThreadGroup, run_ranks

KEY = "model/model.safetensors"
ROW, ROWS, COUNT = 64, 48, 20
TENSOR = ROW * ROWS
DATA = random.Random(5).randbytes(TENSOR * COUNT)
SEEDS = examples(12, 250)
pytestmark = [pytest.mark.timeout(60), pytest.mark.property]

PASSING: list[Behaviour] = [
    faults.short_body(300),
    faults.error(503, "SlowDown", Retry_After="0"),
    faults.reset_body(700),
    faults.close_before_head,
    faults.trickle(200),
    faults.chunked(500),
    faults.error(500),
    faults.until_close(400),
    faults.close_after,
]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def random_wants(chance: random.Random) -> list[Placement]:
    """Some tensors in some order: whole, some rows of them or some columns."""
    wanted: list[Placement] = []
    for tensor in chance.sample(range(COUNT), chance.choice([0, 1, COUNT // 2, COUNT, COUNT])):
        kind, number = chance.choice(["whole", "rows", "columns"]), len(wanted)
        start, end, columns = tensor * TENSOR, (tensor + 1) * TENSOR, None
        if kind == "rows":
            first, last = sorted(chance.choices(range(ROWS + 1), k=2))
            start, end = start + first * ROW, start + last * ROW
        elif kind == "columns":
            first, last = sorted(chance.choices(range(0, ROW + 1, 4), k=2))
            columns = Columns(ROW, first, last)
        wanted.append(Placement(0, start, end, 0, number, "U8", "U8", number, columns))
    return wanted


def expected(placement: Placement) -> bytes:
    data = DATA[placement.start : placement.end]
    if placement.columns is None:
        return data
    first, last = placement.columns.first, placement.columns.last
    return b"".join(data[at + first : at + last] for at in range(0, len(data), ROW))


def load(group: ThreadGroup, server: FaultServer, chance: random.Random, cancels_after: int | None) -> None:
    """One rank: wants, limits and connections by chance; all bytes are compared."""
    wanted = random_wants(chance)
    sizes = [placed_bytes(placement) for placement in wanted]
    memory = [bytearray(size) for size in sizes]
    gate = MemoryGate(sizes, max(sizes)) if wanted and chance.random() < 0.4 else None
    store = store_of(server)
    chunk_bytes = 1_500
    transfer = start_distributed(
        plan_reads(wanted, chunk_bytes),
        [only_object(store)],
        store,
        lambda number: memoryview(memory[number]),
        group=group,
        chunk_bytes=chunk_bytes,
        ring_bytes=chunk_bytes * 4 * group.size,
        concurrency=chance.choice([None, 1, 3]),
        policy=RetryPolicy(attempts=20, first_s=0.0),
        gate=gate,
    )
    try:
        for number in transfer.finished_groups():
            assert memory[number] == expected(wanted[number])
            if gate is not None:
                gate.release(number)
                transfer.wake()
            if number == cancels_after:
                transfer.cancel()
    finally:
        transfer.cancel()
        try:
            transfer.wait()
        except (HeadraceError, Cancelled):
            assert transfer.progress().bytes_done <= transfer.progress().bytes_total


def no_threads_left() -> bool:
    return not [t for t in threading.enumerate() if t.name.startswith(("fetch-", "ranks-"))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_passing_faults_cost_no_byte_of_any_rank(seed: int, server: FaultServer) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 4)
    server.play(*chance.choices([*PASSING, *[faults.honest] * 10], k=60))
    chances = [random.Random(chance.random()) for _ in range(size)]
    for future in run_ranks(size, lambda group: load(group, server, chances[group.rank], None)):
        future.result()
    assert no_threads_left()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_final_fault_or_a_rank_that_gives_up_ends_all_that_are_not_complete(
    seed: int, server: FaultServer
) -> None:
    chance = random.Random(1_000_000 + seed)
    size = chance.randint(2, 4)
    if refused := chance.random() < 0.5:
        server.play(*[faults.honest] * chance.randint(0, 30), faults.error(403, "AccessDenied"))
    cancels = {} if refused else {chance.randrange(size): chance.randrange(COUNT)}
    chances = [random.Random(chance.random()) for _ in range(size)]
    futures = run_ranks(size, lambda group: load(group, server, chances[group.rank], cancels.get(group.rank)))
    for future in futures:
        error = future.exception()
        assert error is None or isinstance(error, HeadraceError | Cancelled), error
    assert no_threads_left()
