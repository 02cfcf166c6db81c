"""Ranks that load together (as threads here; test_stream_distributed_gloo.py has real ones): who gets what, what
the store is asked for, and what an end on one rank means for the others."""

import gc
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from headrace.source.objects import ObjectInfo
from headrace.store.errors import AccessDenied, TransientError
from headrace.store.threads import TooManyThreads
from headrace.stream.convert import convert
from headrace.stream.library.memory_limit import MemoryGate
from headrace.stream.plan import Columns, Placement, placed_bytes, plan_reads
from headrace.stream.ranks.distributed import DistributedTransfer
from headrace.stream.ranks.errors import PeerFailed, PeerLost, RanksDisagree
from headrace.stream.ranks.meeting import Hello
from headrace.stream.ranks.start import start_distributed
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.ledger import Cancelled
from headrace.stream.transfer.transfer import Transfer
from tests.faults import server as faults
from tests.faults.opening import one_byte, only_object, store_of
from tests.faults.server import FaultServer, Stored, fault_server
from tests.stream.thread_group import Gathering, ThreadGroup, run_ranks

KEY = "model/model.safetensors"
TENSOR, COUNT, CHUNK = 6_000, 30, 1_600  # bytes, tensors, bytes of a read
ROW = 60
DATA = random.Random(11).randbytes(TENSOR * COUNT)
FOR_EVER_S = 3600.0
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def whole(tensors: Sequence[int] = range(COUNT)) -> list[Placement]:
    """These tensors, each in a buffer of its own, in this order."""
    return [
        Placement(0, tensor * TENSOR, (tensor + 1) * TENSOR, 0, group, "U8", "U8", group)
        for group, tensor in enumerate(tensors)
    ]


def rows(rank: int, size: int) -> list[Placement]:
    """The rows of rank n of `size` of every tensor."""
    part = TENSOR // size
    return [
        Placement(0, at * TENSOR + rank * part, at * TENSOR + (rank + 1) * part, 0, at, "U8", "U8", at)
        for at in range(COUNT)
    ]


def columns(rank: int, size: int, dtype: str = "BF16") -> list[Placement]:
    """The columns of rank n of `size` of every tensor, from rows of ROW bytes of BF16."""
    width = ROW // size
    kept = Columns(ROW, rank * width, (rank + 1) * width)
    return [
        Placement(0, at * TENSOR, (at + 1) * TENSOR, 0, at, "BF16", dtype, at, kept) for at in range(COUNT)
    ]


def expected(placement: Placement) -> bytes:
    """What the placement's buffer holds in the end."""
    data = DATA[placement.start : placement.end]
    if placement.columns is not None:
        row, first, last = placement.columns.row_bytes, placement.columns.first, placement.columns.last
        data = b"".join(data[at + first : at + last] for at in range(0, len(data), row))
    if placement.dtype != placement.source_dtype:
        result = bytearray(placed_bytes(placement))
        convert(memoryview(data), placement.source_dtype, memoryview(result), placement.dtype)
        data = bytes(result)
    return data


@dataclass
class Load:
    """A rank's load and the memory that it goes to."""

    transfer: Transfer | DistributedTransfer
    memory: list[bytearray]

    def assert_holds(self, placements: Sequence[Placement]) -> None:
        assert self.memory == [expected(placement) for placement in placements]


def start(
    server: FaultServer, group: ThreadGroup, placements: Sequence[Placement], **options: object
) -> Load:
    store = store_of(server, stall_timeout_s=FOR_EVER_S)
    memory = [bytearray(placed_bytes(placement)) for placement in placements]
    settings: dict[str, object] = {
        "chunk_bytes": CHUNK,
        "ring_bytes": 4 * CHUNK * group.size,
        "concurrency": 3,
        "policy": RetryPolicy(attempts=3, first_s=0.0),
        "hedge": False,
    }
    transfer = start_distributed(
        plan_reads(placements, CHUNK),
        [only_object(store)],
        store,
        lambda number: memoryview(memory[number]),
        group=group,
        **{**settings, **options},  # type: ignore[arg-type]
    )
    return Load(transfer, memory)


def load_all(server: FaultServer, wants: Sequence[Sequence[Placement]], **options: object) -> list[list[int]]:
    """Each rank loads what it wants; the groups of each as they came. All bytes are compared."""

    def work(group: ThreadGroup) -> list[int]:
        load = start(server, group, wants[group.rank], **options)
        groups = list(load.transfer.finished_groups())
        load.assert_holds(wants[group.rank])
        return groups

    return [future.result() for future in run_ranks(len(wants), work)]


def bytes_asked(server: FaultServer) -> int:
    return sum(last + 1 - first for first, last in server.ranges)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_has_everything_and_the_store_is_read_once(size: int, server: FaultServer) -> None:
    for groups in load_all(server, [whole()] * size):
        assert sorted(groups) == list(range(COUNT))
    assert bytes_asked(server) == len(DATA)


@pytest.mark.parametrize("size", [2, 4])
def test_slices_of_rows_are_read_once_and_go_to_their_rank(size: int, server: FaultServer) -> None:
    load_all(server, [rows(rank, size) for rank in range(size)])
    assert bytes_asked(server) == len(DATA)


@pytest.mark.parametrize("size", [2, 3])
def test_slices_of_columns_are_read_once_for_all_ranks(size: int, server: FaultServer) -> None:
    load_all(server, [columns(rank, size) for rank in range(size)])
    assert bytes_asked(server) == len(DATA)


def test_ranks_may_want_rows_columns_converted_and_all_of_the_same_tensors(server: FaultServer) -> None:
    load_all(server, [rows(1, 4), columns(0, 2), columns(2, 3, "F32"), whole()])
    assert bytes_asked(server) == len(DATA)


def test_ranks_may_want_different_tensors_in_different_orders(server: FaultServer) -> None:
    first, second = [5, 3, 9, 20], [9, 21, 3]
    groups = load_all(server, [whole(first), whole(second)])
    assert [sorted(each) for each in groups] == [[0, 1, 2, 3], [0, 1, 2]]
    assert bytes_asked(server) == len({*first, *second}) * TENSOR


def test_a_rank_that_wants_nothing_is_done(server: FaultServer) -> None:
    assert load_all(server, [whole(), []])[1] == []
    assert bytes_asked(server) == len(DATA)


def test_nothing_is_read_where_nobody_wants_anything(server: FaultServer) -> None:
    assert load_all(server, [[], []]) == [[], []]
    assert server.ranges == []


def test_tensors_without_bytes_come_first(server: FaultServer) -> None:
    wanted = [*whole([0, 1]), Placement(0, 500, 500, 0, 2, "BF16", "BF16", 2)]
    for groups in load_all(server, [wanted, wanted]):
        assert groups[0] == 2
        assert sorted(groups) == [0, 1, 2]


def test_chunks_that_one_rank_wants_need_no_shared_memory(server: FaultServer) -> None:
    """Rank 1 wants nothing, so that rank 0 reads all, and all of it where it belongs."""

    def work(group: ThreadGroup) -> None:
        wanted = whole() if group.rank == 0 else []
        load = start(server, group, wanted)
        assert isinstance(load.transfer, DistributedTransfer)
        load.transfer.wait()
        load.assert_holds(wanted)
        assert load.transfer.bytes_read == (len(DATA) if group.rank == 0 else 0)

    for future in run_ranks(2, work):
        future.result()


def test_progress_counts_what_this_rank_wants_and_the_reads_that_it_made(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> int:
        load = start(server, group, whole() if group.rank == 0 else whole([1, 2]))
        load.transfer.wait()
        progress = load.transfer.progress()
        tensors = COUNT if group.rank == 0 else 2
        assert (progress.bytes_done, progress.bytes_total) == (tensors * TENSOR,) * 2
        assert (progress.groups_done, progress.groups_total) == (tensors, tensors)
        return progress.requests

    assert sum(future.result() for future in run_ranks(2, work)) == len(server.ranges)


def test_a_retry_on_one_rank_disturbs_nobody(server: FaultServer) -> None:
    server.play(faults.short_body(10), faults.error(503, "SlowDown", Retry_After="0"), faults.reset_body(100))
    load_all(server, [whole()] * 2)


def test_a_group_can_be_waited_for(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> None:
        load = start(server, group, whole())
        load.transfer.wait_group(7)
        assert load.memory[7] == expected(whole()[7])
        load.transfer.wait()

    for future in run_ranks(2, work):
        future.result()


# ---- memory


def test_a_rank_with_room_for_one_tensor_takes_them_one_after_another(server: FaultServer) -> None:
    order = [*range(0, COUNT, 2), *range(1, COUNT, 2)]
    wants = [whole(), whole(order)]

    def work(group: ThreadGroup) -> None:
        gate = MemoryGate([TENSOR] * COUNT, TENSOR) if group.rank == 1 else None
        load = start(server, group, wants[group.rank], gate=gate)
        for number in load.transfer.finished_groups():
            if gate is not None:
                assert gate.held_bytes == TENSOR
                gate.release(number)
                load.transfer.wake()
        load.assert_holds(wants[group.rank])

    for future in run_ranks(2, work):
        future.result()
    assert bytes_asked(server) == len(DATA)


def test_a_rank_that_takes_nothing_bounds_what_others_read_ahead(server: FaultServer) -> None:
    """Rank 1 has room for one tensor and takes none: then all slots fill, and rank 0 cannot complete either."""
    slots = 2 * 4
    stop = threading.Event()

    def work(group: ThreadGroup) -> None:
        gate = MemoryGate([TENSOR] * COUNT, TENSOR) if group.rank == 1 else None
        load = start(server, group, whole(), gate=gate)
        if gate is None:
            load.transfer.wait_group(0)
            stop.wait()
            return load.transfer.wait()
        load.transfer.wait_group(0)
        # Everything that can be read without it: its own first tensor, and the slots.
        while bytes_asked(server) < (slots - 1) * CHUNK:
            pass
        assert bytes_asked(server) <= TENSOR + slots * CHUNK
        stop.set()
        load.transfer.cancel()
        return load.transfer.wait()

    first, second = run_ranks(2, work)
    assert isinstance(first.exception(), PeerFailed)
    assert isinstance(second.exception(), Cancelled)


# ---- ends


def outcomes(size: int, work: Callable[[ThreadGroup], None]) -> list[BaseException | None]:
    futures: list[Future[None]] = run_ranks(size, work)
    return [future.exception() for future in futures]


def test_an_error_on_one_rank_ends_all_and_names_it(server: FaultServer) -> None:
    server.play(faults.honest, faults.honest, faults.error(403, "AccessDenied"))
    errors = outcomes(4, lambda group: start(server, group, whole()).transfer.wait())
    (failed,) = (rank for rank, error in enumerate(errors) if isinstance(error, AccessDenied))
    for rank, error in enumerate(errors):
        if rank != failed:
            assert isinstance(error, PeerFailed)
            assert error.rank == failed
            text = str(error)
            assert text.startswith(
                f"Rank {failed} of the distributed load could not go on: s3://bucket/{KEY}: "
            )
            assert "(HTTP 403, AccessDenied, request id REQ1)" in text


@pytest.mark.parametrize("look", ["wait", "wait_group", "finished_groups"])
def test_whoever_waits_is_told_of_the_end(look: str, server: FaultServer) -> None:
    server.play(*[faults.error(403, "AccessDenied")] * 2)

    def work(group: ThreadGroup) -> None:
        transfer = start(server, group, whole()).transfer
        if look == "wait":
            transfer.wait()
        elif look == "wait_group":
            transfer.wait_group(COUNT - 1)
        else:
            list(transfer.finished_groups())

    for error in outcomes(2, work):
        assert isinstance(error, AccessDenied | PeerFailed)


def test_cancelling_on_one_rank_ends_all(server: FaultServer) -> None:
    server.play(*[faults.stall(10)] * 20)

    def work(group: ThreadGroup) -> None:
        transfer = start(server, group, whole()).transfer
        if group.rank == 1:
            server.stalled.get()
            transfer.cancel()
        transfer.wait()

    first, second = outcomes(2, work)
    assert isinstance(first, PeerFailed)
    assert str(first) == "Rank 1 of the distributed load could not go on: its load was cancelled."
    assert isinstance(second, Cancelled)


def test_a_rank_that_forgets_its_load_ends_that_of_the_others(server: FaultServer) -> None:
    """It takes nothing more, so that chunks would wait for it for ever."""

    def work(group: ThreadGroup) -> None:
        if group.rank == 0:
            start(server, group, whole()).transfer.wait()
            return
        load = start(server, group, whole(), gate=MemoryGate([TENSOR] * COUNT, TENSOR))
        next(load.transfer.finished_groups())
        load.transfer.abandon()

    first, second = outcomes(2, work)
    assert isinstance(first, PeerFailed)
    assert str(first) == "Rank 1 of the distributed load could not go on: its load was cancelled."
    assert second is None


def test_cancelling_after_the_end_changes_nothing(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> None:
        load = start(server, group, whole())
        load.transfer.wait()
        load.transfer.cancel()
        load.transfer.wait()

    assert outcomes(2, work) == [None, None]


def test_a_rank_that_has_everything_and_cancels_still_completes_what_it_reads(server: FaultServer) -> None:
    """Rank 1 reads for rank 0 too: it holds one chunk when it has its own tensor and cancels."""
    release = threading.Event()

    def late(exchange: faults.Exchange) -> None:
        server.stalled.put(exchange.asked)
        release.wait()
        faults.honest(exchange)

    server.play(*[late] * 2)
    started = threading.Barrier(2)

    def work(group: ThreadGroup) -> None:
        wanted = whole([0, 1, 2]) if group.rank == 0 else whole([0])
        load = start(server, group, wanted, concurrency=1)
        started.wait()
        if group.rank == 1:
            for _ in range(2):
                server.stalled.get()
            release.set()
            load.transfer.wait_group(0)
            load.transfer.cancel()
        load.transfer.wait()
        load.assert_holds(wanted)

    assert outcomes(2, work) == [None, None]


def test_a_failing_memory_ends_all_ranks(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> None:
        def make(number: int) -> memoryview:
            if group.rank == 1 and number == 3:
                raise MemoryError("no more")
            return memoryview(bytearray(TENSOR))

        store = store_of(server)
        start_distributed(
            plan_reads(whole(), CHUNK), [only_object(store)], store, make, group=group, chunk_bytes=CHUNK
        ).wait()

    first, second = outcomes(2, work)
    assert isinstance(second, MemoryError)
    assert isinstance(first, PeerFailed)
    assert "MemoryError: no more" in str(first)


def test_a_chunk_that_is_not_what_it_should_be_is_read_again_before_others_see_it(
    server: FaultServer,
) -> None:
    class Once:
        def __init__(self) -> None:
            self.doubted = False

        def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
            if not self.doubted:
                self.doubted = True
                for view in views:
                    view[:] = bytes(len(view))  # what a store's flipped bits would leave
                raise TransientError("s3://bucket/model", "Not what the manifest says.")

    def work(group: ThreadGroup) -> None:
        load = start(server, group, whole(), verifier=Once())
        load.transfer.wait()
        load.assert_holds(whole())

    assert outcomes(2, work) == [None, None]


def descriptors() -> list[str]:
    """Those of shared memory, and of other processes."""
    links = [os.fsdecode(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(link for link in links if "memfd" in link or "anon_inode" in link)


def test_nothing_is_left_of_a_load(server: FaultServer) -> None:
    gc.collect()
    before = descriptors()
    load_all(server, [whole()] * 3)
    assert descriptors() == before
    server.play(faults.error(403, "AccessDenied"))
    errors = outcomes(3, lambda group: start(server, group, whole()).transfer.wait())
    assert None not in errors
    gc.collect()  # of ranks in one process that collect at the same time all but one do so in vain
    assert descriptors() == before
    left = [thread.name for thread in threading.enumerate()]
    assert not [name for name in left if name.startswith(("fetch-", "ranks-"))]
    with open("/proc/self/maps") as maps:
        assert "memfd:headrace" not in maps.read()


# ---- meeting


def test_ranks_with_different_versions_of_an_object_refuse_to_load_together(server: FaultServer) -> None:
    items: dict[int, ObjectInfo] = {}
    listed = threading.Barrier(2)

    def work(group: ThreadGroup) -> None:
        store = store_of(server)
        if group.rank == 1:
            listed.wait()
            server.objects[KEY] = Stored.of(DATA[::-1])
        items[group.rank] = only_object(store)
        if group.rank == 0:
            listed.wait()
        start_distributed(
            plan_reads(whole(), CHUNK), [items[group.rank]], store, memoryview(bytearray(1)), group=group
        )

    errors = outcomes(2, work)
    for rank, error in enumerate(errors):
        assert isinstance(error, RanksDisagree)
        text = str(error)
        assert text.startswith(
            f"Ranks {rank} and {1 - rank} cannot load together: they found different versions of"
        )
        assert items[0].version in text
        assert items[1].version in text
    assert server.ranges == []


def test_connections_that_were_handed_over_are_closed_where_the_ranks_disagree(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> None:
        store = store_of(server)
        item = only_object(store)
        reader = store.open_reader()
        reader.read_into(item, 0, one_byte())
        items = [item] * (1 + group.rank)
        try:
            start_distributed(
                plan_reads(whole(), CHUNK), items, store, memoryview(b""), group=group, readers=[reader]
            )
        finally:
            assert reader._connection.http._socket is None

    for error in outcomes(2, work):
        assert isinstance(error, RanksDisagree)
        assert "they were given" in str(error)


def test_a_rank_that_cannot_begin_tells_the_others(server: FaultServer) -> None:
    first, second = outcomes(
        2, lambda group: start(server, group, whole(), concurrency=3 - 3 * group.rank).transfer.wait()
    )
    assert isinstance(second, AssertionError)
    assert isinstance(first, PeerFailed)
    assert first.rank == 1


@pytest.mark.parametrize("name", ["ranks-0", "ranks-2", "ranks-links"])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
def test_a_rank_whose_threads_do_not_all_start_ends_the_load_and_leaves_nothing(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    honest = threading.Thread.start
    caller: list[threading.Thread] = []

    def refused(thread: threading.Thread) -> None:
        if thread.name == name and threading.current_thread() in caller:
            if isinstance(error, KeyboardInterrupt):  # which comes while the start is waited for
                honest(thread)
            raise error
        honest(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    gc.collect()
    before = descriptors()

    def work(group: ThreadGroup) -> None:
        if group.rank == 1:
            caller.append(threading.current_thread())
        start(server, group, whole()).transfer.wait()

    first, second = outcomes(2, work)
    assert isinstance(second, TooManyThreads | KeyboardInterrupt)
    assert isinstance(first, PeerFailed) and first.rank == 1
    del first, second
    for thread in threading.enumerate():
        if thread.name.startswith("ranks-"):
            thread.join(timeout=30)
            assert not thread.is_alive()
    gc.collect()
    assert descriptors() == before


class Estranged(ThreadGroup):
    """Changes what a rank tells the others of itself."""

    def __init__(self, group: ThreadGroup, change: Callable[[Hello], Hello]) -> None:
        super().__init__(group._gathering, group.rank)
        self._change = change
        self._calls = 0

    def gather(self, data: bytes) -> list[bytes]:
        self._calls += 1
        if self._calls == 1:
            hello = self._change(msgspec.msgpack.decode(data, type=Hello))
            data = msgspec.msgpack.encode(hello)
        return super().gather(data)


def test_ranks_of_different_machines_read_each_for_themselves(server: FaultServer) -> None:
    def work(group: ThreadGroup) -> None:
        machine = f"machine-{group.rank // 2}"
        other = Estranged(group, lambda hello: msgspec.structs.replace(hello, kernel=machine))
        load = start(server, other, whole())
        assert isinstance(load.transfer, DistributedTransfer)
        load.transfer.wait()
        load.assert_holds(whole())

    assert outcomes(4, work) == [None] * 4
    assert bytes_asked(server) == 2 * len(DATA)


def test_ranks_of_one_machine_in_other_network_namespaces_read_for_themselves_and_a_warning_says_so(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    def work(group: ThreadGroup) -> None:
        network = f"network-{group.rank}"
        other = Estranged(group, lambda hello: msgspec.structs.replace(hello, network=network))
        load = start(server, other, whole())
        assert isinstance(load.transfer, Transfer)
        load.transfer.wait()
        load.assert_holds(whole())

    with caplog.at_level(logging.WARNING):
        assert outcomes(2, work) == [None, None]
    assert "Ranks [1] are on the machine of ranks [0] but not in their network namespace" in caplog.text


def test_ranks_that_cannot_reach_each_other_read_for_themselves_and_a_warning_says_why(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a restored snapshot: two machines that take themselves for the same one."""

    def stranger(hello: Hello) -> Hello:
        assert hello.address is not None
        nowhere = msgspec.structs.replace(hello.address, name="headrace-nobody-listens-here")
        return msgspec.structs.replace(hello, address=nowhere)

    def work(group: ThreadGroup) -> None:
        load = start(server, Estranged(group, stranger) if group.rank == 0 else group, whole())
        assert isinstance(load.transfer, Transfer)
        load.transfer.wait()
        load.assert_holds(whole())

    with (
        caplog.at_level(logging.WARNING),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("headrace.stream.ranks.handshake.MEETING_TIMEOUT_S", 0.2)
        assert outcomes(2, work) == [None, None]
    assert (
        "Ranks [0, 1] of one machine cannot share what they read, so each reads for itself: rank "
        in caplog.text
    )
    assert "Connection refused" in caplog.text


def test_a_rank_that_is_silent_is_lost(server: FaultServer) -> None:
    """Rank 1 meets the others and then never gives a sign of life, as a process that was stopped."""
    from headrace.stream.ranks.declaration import declare
    from headrace.stream.ranks.meeting import meet

    ended = threading.Event()

    def work(group: ThreadGroup) -> None:
        if group.rank == 1:
            store = store_of(server)
            machine = meet(group, declare(whole(), [only_object(store)], store, CHUNK), 8 * CHUNK)
            assert machine is not None
            ended.wait()
            return machine.close()
        try:
            return start(server, group, whole(), silence_timeout_s=0.3).transfer.wait()
        finally:
            ended.set()

    first, second = outcomes(2, work)
    assert second is None
    assert isinstance(first, PeerLost)
    assert str(first).startswith(
        "Rank 1 of the distributed load was lost: its process gave no sign of life for 0.3 s."
    )


def test_without_a_group_it_is_a_plain_transfer(server: FaultServer) -> None:
    store = store_of(server)
    memory = bytearray(len(DATA))
    one = [Placement(0, 0, len(DATA), 0, 0, "U8", "U8")]
    transfer = start_distributed(plan_reads(one, CHUNK), [only_object(store)], store, memoryview(memory))
    assert isinstance(transfer, Transfer)
    transfer.wait()
    assert memory == DATA


def test_a_group_of_one_reads_for_itself(server: FaultServer) -> None:
    load = start(server, ThreadGroup(Gathering(1), 0), whole())
    assert isinstance(load.transfer, Transfer)
    load.transfer.wait()
    load.assert_holds(whole())
