"""Loads under random faults: the right bytes or the right error, in time, and nothing is left behind."""

import ctypes
import gc
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from headrace.store.s3.store import S3Store
from headrace.store.web.store import HttpStore
from headrace.stream import restart
from headrace.stream.retry import RetryPolicy
from tests.faults.server import FaultServer
from tests.faults.soak_case import Case, draw_case
from tests.faults.soak_load import Load, Outcome, WrongOutcome
from tests.faults.soak_surroundings import Surroundings
from tests.faults.sockets import sockets_to

SLICE, SOAK = 30, 500
# Waits and patience are a part of what they are in earnest; what decides about them is the library's own.
WAITS = 1 / 50
PATIENCE_S, LONG_PATIENCE_S = 0.4, 30.0
PATIENCE_FOR_HEDGES_S = 1.0  # a second connection is put to what has been slow for half a second
OWN_THREADS = ("fetch-", "small-reads-", "look-up-", "name-look-up")
LONGEST_END_S = 10.0
# After these loads everything that is made once has been made.
WARM = 10


@pytest.fixture
def around(tmp_path: Path, loopback_tls: Tls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    wanted = RetryPolicy.delay_s
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda self, *args: wanted(self, *args) * WAITS)
    monkeypatch.setattr(restart, "QUIET_S", (1e-4, 1e-4))
    credentials = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(variable, str(loopback_tls.certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    surroundings = Surroundings(credentials, context)
    with surroundings.handling():
        yield surroundings


@contextmanager
def stopping(server: FaultServer) -> Iterator[None]:
    try:
        yield
    finally:
        server.stop()


def run(case: Case, around: Surroundings) -> Outcome:
    """One load, after which its threads and connections are gone."""
    patience_s = LONG_PATIENCE_S
    if case.silent:
        patience_s = PATIENCE_FOR_HEDGES_S if case.way == "transfer" and case.hedge else PATIENCE_S
    server = FaultServer({}, tls=around.tls if case.tls else None)
    with pytest.MonkeyPatch.context() as patch, stopping(server):
        for kind in (S3Store, HttpStore):
            defaults = kind.__init__.__kwdefaults__
            assert defaults is not None
            patch.setitem(defaults, "stall_timeout_s", patience_s)
        others = set(threading.enumerate())  # other tests' may be on their way out still
        outcome = Load(case, server, around).run()

        def own_threads() -> list[threading.Thread]:
            running = set(threading.enumerate()) - others
            return [thread for thread in running if thread.name.startswith(OWN_THREADS)]

        for thread in own_threads():
            thread.join(LONGEST_END_S)
        gc.collect()  # connections that a look-up leaves behind go with their store
        left = [thread.name for thread in own_threads()]
        if left or sockets_to(server.port):
            raise WrongOutcome(f"{left} and {sockets_to(server.port)} connections are left.")
    return outcome


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def own_objects() -> Counter[str]:
    """What there is of the library's own, by kind: transfers, connections, their memory and books."""
    gc.collect()
    kinds = [type(found) for found in gc.get_objects()]
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("headrace."))


def resident_mib() -> float:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def soak(seeds: range, around: Surroundings) -> list[Outcome]:
    """All of them; what is open, held and known afterwards is no more than it was after the first ones."""
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    files, objects, first_mib = 0, Counter[str](), 0.0
    for number, seed in enumerate(seeds):
        case = draw_case(seed)
        try:
            outcomes.append(run(case, around))
        except BaseException as error:
            error.add_note(f"seed {seed}: {describe(case)}")
            raise
        if number == min(WARM, len(seeds) // 3):
            files, objects, first_mib = open_files(), own_objects(), resident_mib()
    mib = resident_mib()
    print(summary(seeds, outcomes, time.monotonic() - begun, f"{first_mib:.0f} then {mib:.0f} MiB"))
    assert open_files() == files
    assert own_objects() <= objects
    assert mib - first_mib < 30
    return outcomes


def describe(case: Case) -> str:
    shown = {name: getattr(case, name) for name in Case.__slots__ if name not in ("files", "seed")}
    return f"{len(case.files)} files, {shown}"


def summary(seeds: range, outcomes: list[Outcome], seconds: float, memory: str) -> str:
    ends = Counter(outcome.end for outcome in outcomes)
    told: Counter[str] = sum((outcome.told for outcome in outcomes), Counter())
    listed = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    faults = ", ".join(f"{count} {name}" for name, count in told.most_common())
    longest, seed = max((outcome.seconds, seed) for seed, outcome in zip(seeds, outcomes, strict=True))
    return (
        f"\n{len(outcomes)} loads (seeds {seeds.start}-{seeds.stop - 1}) in {seconds:.0f} s, the longest {longest:.1f} s (seed {seed}), "
        f"{memory}: {listed}; {sum(outcome.hedges for outcome in outcomes)} hedges; {told.total():,} faults: {faults}"
    )


@pytest.mark.timeout(120)
def test_loads_under_random_faults_give_the_right_bytes_or_the_right_error(around: Surroundings) -> None:
    outcomes = soak(range(SLICE), around)
    assert any(outcome.end == "complete" and outcome.told.total() for outcome in outcomes)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_loads_under_random_faults_lose_and_leak_nothing(around: Surroundings) -> None:
    soak(range(SOAK), around)
