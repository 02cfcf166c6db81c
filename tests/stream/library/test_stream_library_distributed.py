"""is_distributed: two real ranks load through the library; what the store sends, and what an error of one is to both."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.opening import environment_of
from tests.faults.server import fault_server
from tests.stream.safetensors_files import content
from tests.stream.streaming import FOLDER, put

ROOT = Path(__file__).parents[3]
MODEL = {
    "rows": content("I32", (600, 400)),
    "columns": content("I32", (600, 400), 1),
    "bias": content("F32", (33,)),
    "empty": content("F32", (0, 4)),
}
SIZE = sum(len(tensor.data) for tensor in MODEL.values())
pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Loads:
    """What came of each load: the ranks' answers, and the bytes that the store was asked for."""

    answers: list[list[dict[str, Any]]]
    bytes_read: list[int]


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loads]:
    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    with fault_server({}) as server:
        put(server, "model.safetensors", MODEL)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.stream.library_rank"],
                cwd=ROOT,
                env={**os.environ, **environment_of(server)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        answers, bytes_read, seen = [], [], 0
        try:
            for number, rank in enumerate(ranks):
                assert rank.stdin is not None
                asked = {"rank": number, "size": 2, "meeting": str(meeting), "folder": FOLDER}
                rank.stdin.write(json.dumps(asked) + "\n")
                rank.stdin.flush()
            for _ in range(5):
                lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
                answers.append([json.loads(line) for line in lines])
                ranges = server.ranges
                bytes_read.append(sum(last - first + 1 for first, last in ranges[seen:]))
                seen = len(ranges)
            for rank in ranks:
                assert rank.wait(60) == 0
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        yield Loads(answers, bytes_read)


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


WHOLE = {name: hash_of(tensor.data) for name, tensor in MODEL.items()}
HEADERS = 2 * (256 << 10)  # each rank proves them for itself


def test_every_rank_gets_every_tensor_and_the_store_sends_each_byte_once(loads: Loads) -> None:
    assert loads.answers[0] == [WHOLE, WHOLE]
    assert loads.bytes_read[0] <= 1.02 * SIZE + HEADERS


def test_every_rank_gets_its_own_parts(loads: Loads) -> None:
    for rank, answer in enumerate(loads.answers[1]):
        whole = {
            name: np.frombuffer(MODEL[name].data, np.int32).reshape(600, 400) for name in ("rows", "columns")
        }
        assert answer == {
            **WHOLE,
            "rows": hash_of(whole["rows"][rank * 300 : rank * 300 + 300].tobytes()),
            "columns": hash_of(
                np.ascontiguousarray(whole["columns"][:, rank * 200 : rank * 200 + 200]).tobytes()
            ),
        }
    assert loads.bytes_read[1] <= 1.02 * SIZE + HEADERS


@pytest.mark.parametrize(("load", "kind", "said"), [(2, "UnknownTensor", "missing"), (3, "NotFound", "gone")])
def test_what_one_rank_cannot_begin_by_ends_the_other_with_its_words(
    loads: Loads, load: int, kind: str, said: str
) -> None:
    first, second = loads.answers[load]
    assert (first["error"], second["error"]) == ("PeerFailed", kind)
    assert said in second["text"]
    assert second["text"][:40] in first["text"]
    assert first["text"].startswith("Rank 1 of the distributed load could not go on")


def test_after_such_an_end_the_group_loads_again_and_a_limit_holds_nobody_up(loads: Loads) -> None:
    assert loads.answers[4] == [WHOLE, WHOLE]
