"""Real ranks: processes in a torch.distributed group over gloo, which load together from a store.

Starting processes that import torch takes seconds: a group of two and one of four carry out all loads, one after
another, the last of which a rank does not survive; each test looks at what came of one of them.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.store import SeaweedStore
from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import TensorInfo, header_length, parse_header
from headrace.stream.convert import convert
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import Asked, FaultServer, fault_server

ROOT = Path(__file__).parents[3]
CHUNK = 20_000
ENDS_WITHIN_S = 10.0  # what is promised of the others when a rank dies
SILENCE_TIMEOUT_S = 3.0
URI = "s3://bucket/model"
pytestmark = pytest.mark.timeout(180)

Answer = dict[str, Any]


def checkpoint(seed: int) -> bytes:
    """A safetensors file: matrices, vectors, a scalar and tensors without elements, all of BF16."""
    shapes: dict[str, list[int]] = {"embed": [400, 64], "norm": [64], "scale": [], "empty": [0, 64]}
    for layer in range(6):
        shapes |= {f"{layer}.up": [128, 64], f"{layer}.down": [64, 128], f"{layer}.bias": [128]}
    shapes["last.empty"] = [3, 0]
    header: Answer = {}
    end = 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + random.Random(seed).randbytes(end)


def tensors_of(data: bytes) -> dict[str, TensorInfo]:
    length = header_length(data, len(data), "test")
    return parse_header(data[8 : 8 + length], ObjectInfo("k", "k", len(data), ""), "test").tensors


def expected(kind: str, data: bytes, rank: int, size: int) -> dict[str, str]:
    """The hash of each tensor's bytes as the rank should have them."""
    result: dict[str, str] = {}
    for name, tensor in tensors_of(data).items() if kind != "nothing" else ():
        content = data[tensor.start : tensor.end]
        if kind == "rows" and tensor.shape and tensor.shape[0] % size == 0:
            part = len(content) // size
            content = content[rank * part : (rank + 1) * part]
        if (
            kind in ("columns", "float32")
            and len(tensor.shape) == 2
            and content
            and tensor.shape[1] % size == 0
        ):
            row = 2 * tensor.shape[1]
            first, last = rank * row // size, (rank + 1) * row // size
            content = b"".join(content[at + first : at + last] for at in range(0, len(content), row))
        if kind == "float32":
            converted = bytearray(2 * len(content))
            convert(memoryview(content), "BF16", memoryview(converted), "F32")
            content = bytes(converted)
        result[name] = hashlib.sha256(content).hexdigest()
    return result


@dataclass
class Ranks:
    """The processes of a group."""

    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def answer(self, rank: int) -> Answer:
        """The next line that a rank prints."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, f"rank {rank} ended without an answer"
        result: Answer = json.loads(line)
        return result

    def answers(self) -> list[Answer]:
        return [self.answer(rank) for rank in range(len(self.processes))]


@contextlib.contextmanager
def group(size: int, folder: Path, loads: Sequence[Answer]) -> Iterator[Ranks]:
    """Start the ranks; they are killed in the end, if they have not ended."""
    ranks = Ranks()
    try:
        for rank in range(size):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.stream.gloo_rank"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
            ranks.processes.append(process)
            assert process.stdin is not None
            asked = {"rank": rank, "size": size, "file": str(folder / "group"), "loads": list(loads)}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.close()
        assert all("ready" in answer for answer in ranks.answers())
        yield ranks
    finally:
        for process in ranks.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class Scripted:
    """What the store does to the objects of the loads that fail."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._refused = False
        self._lock = threading.Lock()
        server.refuse = self.answer

    def answer(self, asked: Asked) -> bytes | None:
        """Refuse one read in the middle of "refused"; let reads of the second half of the held ones wait."""
        name = asked.path.removeprefix("/bucket/model/").removesuffix(".safetensors")
        if asked.range is None or asked.range[0] < 100_000:
            return None
        if name == "refused":
            with self._lock:
                first, self._refused = not self._refused, True
            return faults.error_answer(403, "AccessDenied") if first else None
        if name in ("stopped", "killed"):
            self._server.stalled.put(asked)
            self._server.stopped.wait()
            return faults.error_answer(503)
        return None


@dataclass
class Outcome:
    """What came of the loads of one group: the answers of each load by rank, and what the store was asked for."""

    size: int
    kinds: dict[str, list[str]]
    files: dict[str, bytes]
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked_bytes: dict[str, int] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)

    def check_hashes(self, name: str) -> None:
        """Every tensor of every rank is what it should be, nothing was read twice and nothing is left."""
        answers, data = self.answers[name], self.files[name]
        for rank, answer in enumerate(answers):
            assert answer.get("hashes") == expected(self.kinds[name][rank], data, rank, self.size), answer
            assert answer["left"] == []
        whole = sum(tensor.end - tensor.start for tensor in tensors_of(data).values())
        assert self.asked_bytes[name] == sum(answer["bytes_read"] for answer in answers) == whole


def data_bytes(server: FaultServer, name: str, data: bytes) -> int:
    """How many bytes of an object's tensors the store was asked for."""
    begin = min(tensor.start for tensor in tensors_of(data).values())
    key = f"/bucket/model/{name}.safetensors"
    spans = [asked.range for asked in server.log if asked.path == key and asked.range is not None]
    return sum(last + 1 - first for first, last in spans if first >= begin)


@pytest.fixture(scope="module", params=[2, 4])
def outcome(
    request: pytest.FixtureRequest,
    seaweed: SeaweedStore,
    smollm2_uri: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    """All loads of one group; the one of two has a real model besides."""
    size: int = request.param
    kinds = {
        "whole": ["whole"] * size,
        "rows": ["rows"] * size,
        "columns": ["columns"] * size,
        "mixed": ["float32", "rows", "nothing", "whole"][:size],
        "refused": ["whole"] * size,
        "stopped": ["whole"] * size,
        "killed": ["whole"] * size,
        "after": ["whole"] * size,
    }
    files = {name: checkpoint(seed) for seed, name in enumerate(kinds)}
    with fault_server({f"model/{name}.safetensors": data for name, data in files.items()}) as server:
        Scripted(server)
        common = {
            "uri": URI,
            "environment": environment_of(server),
            "chunk_bytes": CHUNK,
            "ring_bytes": 16 * CHUNK,
        }
        loads = [{**common, "name": f"{name}.safetensors", "kinds": each} for name, each in kinds.items()]
        loads[-3]["silence_timeout_s"] = SILENCE_TIMEOUT_S
        if size == 2:
            kinds = {"smollm2": ["rows", "whole"], **kinds}
            real = {"uri": smollm2_uri, "environment": seaweed.environment(), "name": "model.safetensors"}
            loads.insert(
                0, {**real, "kinds": kinds["smollm2"], "chunk_bytes": 4 << 20, "ring_bytes": 64 << 20}
            )
        result = Outcome(size, kinds, files)
        with group(size, tmp_path_factory.mktemp("group"), loads) as ranks:
            for name in [name for name in kinds if name not in ("stopped", "killed", "after")]:
                result.answers[name] = ranks.answers()
                result.asked_bytes[name] = data_bytes(server, name, files[name]) if name in files else 0
            server.stalled.get()  # the load cannot end any more
            ranks.processes[1].send_signal(signal.SIGSTOP)
            others = [rank for rank in range(size) if rank != 1]
            answers = {rank: ranks.answer(rank) for rank in others}
            ranks.processes[1].send_signal(signal.SIGCONT)
            answers[1] = ranks.answer(1)
            result.answers["stopped"] = [answers[rank] for rank in range(size)]
            while "killed" not in server.stalled.get().path:
                pass
            ranks.processes[1].kill()
            result.answers["killed"] = [ranks.answer(rank) for rank in others]
            result.answers["after"] = [ranks.answer(rank) for rank in others]
            result.exits = [ranks.processes[rank].wait(ENDS_WITHIN_S) for rank in others]
    return result


@pytest.mark.parametrize("outcome", [2], indirect=True)
def test_a_real_checkpoint_from_a_real_store_is_read_once(outcome: Outcome, smollm2_folder: Path) -> None:
    data = (smollm2_folder / "model.safetensors").read_bytes()
    answers = outcome.answers["smollm2"]
    for rank, answer in enumerate(answers):
        assert answer.get("hashes") == expected(outcome.kinds["smollm2"][rank], data, rank, 2), answer
    assert sum(answer["bytes_read"] for answer in answers) <= 1.02 * len(data)
    assert all(answer["bytes_read"] for answer in answers)


def test_all_ranks_have_every_tensor_and_the_store_is_read_once(outcome: Outcome) -> None:
    outcome.check_hashes("whole")


def test_each_rank_has_its_rows_and_the_store_is_read_once(outcome: Outcome) -> None:
    outcome.check_hashes("rows")


def test_each_rank_has_its_columns_and_the_store_is_read_once(outcome: Outcome) -> None:
    outcome.check_hashes("columns")


def test_ranks_may_want_converted_columns_rows_nothing_and_everything(outcome: Outcome) -> None:
    outcome.check_hashes("mixed")


def test_an_error_of_the_store_on_one_rank_is_raised_on_all(outcome: Outcome) -> None:
    answers = outcome.answers["refused"]
    errors = [answer["error"] for answer in answers]
    assert sorted(errors) == ["AccessDenied", *["PeerFailed"] * (outcome.size - 1)]
    for answer in answers:
        assert "(HTTP 403, AccessDenied, request id REQ1)" in answer["text"]
        assert answer["left"] == []
        if answer["error"] == "PeerFailed":
            assert answer["rank"] == errors.index("AccessDenied")


def test_a_stopped_rank_ends_the_others_when_it_is_silent_for_too_long(outcome: Outcome) -> None:
    for answer in outcome.answers["stopped"]:  # the stopped one too is told of it, when it goes on
        assert (answer["error"], answer["rank"]) == ("PeerLost", 1)
        assert answer["text"].startswith(
            "Rank 1 of the distributed load was lost: its process gave no sign of life"
        )
        assert answer["left"] == []


def test_a_killed_rank_ends_the_others_and_is_named(outcome: Outcome) -> None:
    for answer in outcome.answers["killed"]:
        assert (answer["error"], answer["rank"]) == ("PeerLost", 1)
        assert answer["text"].startswith("Rank 1 of the distributed load was lost: its process ended")
        assert answer["left"] == []
    assert outcome.exits == [0] * (outcome.size - 1)


def test_a_rank_that_died_before_it_came_is_not_waited_for(outcome: Outcome) -> None:
    for answer in outcome.answers["after"]:
        assert answer["error"] == "RanksCannotMeet"
        assert answer["text"].endswith(
            "Probably one of them has ended: see its log, then load again on all ranks."
        )
        assert answer["left"] == []
