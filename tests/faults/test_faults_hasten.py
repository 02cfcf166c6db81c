"""Bytes that are wanted before their turn, from a store that fails: they come all the same, and nothing is lost."""

import random

import pytest

from headrace.stream.plan import Placement, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.hasten import ByteRange
from headrace.stream.transfer.transfer import Transfer
from tests.faults import server as faults
from tests.faults.opening import only_object, store_of
from tests.faults.server import Behaviour, fault_server

KEY = "model/model.safetensors"
CHUNK = 10_000
DATA = random.Random(3).randbytes(CHUNK * 20)
PASSING: list[Behaviour] = [
    faults.short_body(40),
    faults.error(503, "SlowDown", Retry_After="0"),
    faults.reset_body(100),
    faults.honest,
    faults.close_before_head,
    faults.trickle(777),
    faults.close_in_head,
    faults.error(500),
    faults.close_after,
]
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_hastened_bytes_come_through_any_mixture_of_passing_faults(seed: int, concurrency: int) -> None:
    chance = random.Random(seed)
    behaviours = PASSING * 4
    chance.shuffle(behaviours)
    memory = bytearray(len(DATA))
    groups = 4
    step = len(DATA) // groups
    plan = plan_reads(
        [Placement(0, at * step, (at + 1) * step, at * step, at, "U8", "U8") for at in range(groups)],
        chunk_bytes=CHUNK,
    )
    with fault_server({KEY: DATA}) as server:
        server.play(*behaviours)
        store = store_of(server)
        transfer = Transfer(
            plan,
            [only_object(store)],
            store,
            memoryview(memory),
            concurrency=concurrency,
            policy=RetryPolicy(40, first_s=0.0),
        )
        for _ in range(6):
            starts = [chance.randrange(len(DATA) - 500) for _ in range(5)]
            wanted = [ByteRange(0, start, start + chance.randrange(1, 500)) for start in starts]
            assert transfer.wait_group(transfer.hasten(wanted))
            for each in wanted:
                assert memory[each.start : each.end] == DATA[each.start : each.end]
        for group in range(groups):
            assert transfer.wait_group(group)
            assert memory[group * step : (group + 1) * step] == DATA[group * step : (group + 1) * step]
        transfer.wait()
    assert memory == DATA
    assert transfer.progress().bytes_done == len(DATA)
