"""Carrying out one case of the soak through the public library, and judging what came of it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace import S3Credentials, SafetensorsStreamer, load_file
from headrace.errors import HeadraceError
from headrace.stream.library.opening import open_objects
from headrace.stream.library.options import LoadOptions
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.transfer.transfer import Cancelled, Transfer
from headrace.stream.verify.opened import verify_opened
from tests.faults.opening import ACCESS_KEY, SECRET
from tests.faults.server import Asked, FaultServer, error_answer
from tests.faults.soak_case import Case, fill
from tests.faults.soak_faults import NOT_OF_THE_MANIFEST, fatal_faults
from tests.faults.soak_server import Chance
from tests.faults.soak_surroundings import NEW_KEY, OLD_KEY, Interrupted, Surroundings
from tests.faults.soak_wanted import draw_placement, draw_slices

# Of a load that is to end by it; and of the others, which should need a small part of it.
_SHORT_DEADLINE_S, DEADLINE_S = 0.4, 40.0
_BEFORE_PATIENCE_ENDS_S = 20.0


class WrongOutcome(AssertionError):
    """A load that ended otherwise than it may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a load ended.

    Attributes:
        end: "complete", "complete after a change", "left", "cancelled", "interrupted", or the error's name.
        told: how often each fault was sent.
        hedges: second connections, where that is known.
    """

    end: str
    told: Counter[str]
    seconds: float
    hedges: int


class Load:
    """One case against its own server."""

    def __init__(self, case: Case, server: FaultServer, around: Surroundings) -> None:
        self.case, self.server, self.around = case, server, around
        self._others = set(threading.enumerate())
        fill(server, case)
        twins = {file.versions()[0]: file.versions()[1] for file in case.files}
        self.fatal = fatal_faults(twins.__getitem__)[case.fatal] if case.fatal else None
        self.chance = Chance(
            seed=case.seed,
            rate=case.rate,
            silent=case.silent,
            redirects=case.scheme == "http",
            bursts=case.bursts,
            closes=case.closes,
            hangs=case.hangs,
            fatal=self.fatal,
            fatal_name=case.fatal,
            fatal_at=case.fatal_at,
        )
        server.usual = self.chance
        if case.scheme == "s3" and case.way == "folder" and case.rate:
            server.list_script.extend([error_answer(503, "SlowDown")] * (case.seed % 3))
        around.write_key(OLD_KEY)
        if case.rotates_at:
            self.chance.events[case.rotates_at] = self._rotate
        self.draw = random.Random(case.seed)
        self.hedges: int | None = None
        place = "s3://bucket" if case.scheme == "s3" else f"{server.url}/bucket"
        self.folder = f"{place}/model"
        self.uris = [f"{self.folder}/{file.name}" for file in case.files]
        keys = {} if case.rotates_at else {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET}
        self.credentials = S3Credentials(region_name="us-east-1", endpoint=server.url, **keys)
        self.deadline_s = DEADLINE_S
        if case.fatal == "silent for ever" or case.hangs:
            self.deadline_s = _SHORT_DEADLINE_S if case.fatal else _BEFORE_PATIENCE_ENDS_S
        self.options: LoadOptions = {
            "chunk_bytes": case.chunk_bytes,
            "concurrency": case.concurrency,
            "memory_limit": case.memory_limit,
            "verify": case.verify,
            "deadline_s": self.deadline_s,
        }

    def _rotate(self) -> None:
        self.around.write_key(NEW_KEY)

        def refuse(asked: Asked) -> bytes | None:
            old = OLD_KEY in asked.headers.get("authorization", "")
            return error_answer(400, "ExpiredToken") if old else None

        self.server.refuse = refuse
        self.chance.told["credentials rotated"] += 1

    def run(self) -> Outcome:
        """Raises WrongOutcome."""
        ways = {
            "file": self._file,
            "folder": self._file,
            "streamer": self._streamer,
            "transfer": self._transfer,
        }
        begun = time.monotonic()
        try:
            end = ways[self.case.way]()
        except Interrupted:
            end = "interrupted"
        except HeadraceError as error:
            self._judge(error)
            end = type(error).__name__
        finally:
            self.chance.end()
        seconds = time.monotonic() - begun
        if seconds > DEADLINE_S:
            raise WrongOutcome(f"It took {seconds:.1f} s.")
        if end.startswith("complete"):
            self._judge_success(end, seconds)
        return Outcome(end, self.chance.told, seconds, self.hedges or 0)

    def _judge(self, error: HeadraceError) -> None:
        allowed: tuple[type[HeadraceError], ...] = ()
        if self.fatal is not None and self.chance.told[self.case.fatal]:
            allowed = self.fatal.errors
            if self.case.verify != "off" and "Changed" in {kind.__name__ for kind in allowed}:
                allowed += NOT_OF_THE_MANIFEST
        elif self.fatal is not None and self.case.fatal == "silent for ever":
            allowed = self.fatal.errors  # the deadline is short whether it comes to that or not
        if not isinstance(error, allowed):
            raise WrongOutcome(f"{type(error).__name__} after {dict(self.chance.told)}: {error}") from error
        if SECRET in str(error):
            raise WrongOutcome(f"A secret is shown: {error}")

    def _judge_success(self, end: str, seconds: float) -> None:
        if self.case.hangs and (self.chance.hangs or self.hedges == 0):
            raise WrongOutcome("No second connection was put to a chunk that hangs.")
        told = self.fatal is not None and self.chance.told[self.case.fatal] > 0
        assert self.fatal is not None or not told
        # What a second connection is told ends nothing, and nobody hears what comes after a time-out.
        unheard = self.case.silent or self.hedges or (self.hedges is None and seconds > 0.5)
        if told and not unheard and end == "complete" and not (self.fatal and self.fatal.perhaps):
            raise WrongOutcome(f"It is complete in spite of {self.case.fatal!r}.")

    # ---- load_file

    def _file(self) -> str:
        case = self.case
        if case.end == "interrupt":
            self.chance.events[case.end_at] = self.around.interrupt
        with self.around.loading():
            found = load_file(
                self.uris[0] if case.way == "file" else self.folder,
                s3_credentials=self.credentials,
                framework="numpy",
                restart_on_change=case.restart,
                **self.options,
            )
        versions = {
            self._version_of(file.name, {name: found[name].tobytes() for name in file.before})
            for file in case.files
        }
        if found.keys() != {name for file in case.files for name in file.before}:
            raise WrongOutcome(f"Other tensors: {sorted(found)}")
        return "complete after a change" if "after" in versions else "complete"

    def _version_of(self, file_name: str, found: dict[str, bytes]) -> str:
        """Which one the tensors of a file are all of."""
        (file,) = (file for file in self.case.files if file.name == file_name)
        if all(data == file.before[name].data for name, data in found.items()):
            return "before"
        if self.case.restart and all(data == file.after[name].data for name, data in found.items()):
            return "after"
        wrong = [name for name, data in found.items() if data != file.before[name].data]
        raise WrongOutcome(f"Wrong bytes in {wrong[:5]} of {file_name} after {dict(self.chance.told)}.")

    # ---- SafetensorsStreamer

    def _streamer(self) -> str:
        case = self.case
        everything = {name: tensor for file in case.files for name, tensor in file.before.items()}
        names = None
        if self.draw.random() < 0.3:
            names = self.draw.sample(sorted(everything), self.draw.randint(1, len(everything)))
        wanted = everything if names is None else {name: everything[name] for name in names}
        slices, expected = draw_slices(self.draw, wanted)
        found: set[str] = set()
        with SafetensorsStreamer() as streamer:
            self.options.update({"names": names, "slices": slices})
            streamer.stream_files(self.uris, self.credentials, framework="numpy", **self.options)
            try:
                for name, tensor in streamer.get_tensors():
                    if tensor.tobytes() != expected[name]:
                        raise WrongOutcome(f"Wrong bytes in {name} after {dict(self.chance.told)}.")
                    found.add(name)
                    if case.end == "leave" and len(found) == case.end_at:
                        return "left"
            finally:
                progress = streamer.progress()
                self.hedges = progress.hedges if progress is not None else None
        if found != wanted.keys():
            raise WrongOutcome(f"Not all tensors: {sorted(wanted.keys() - found)}")
        return "complete"

    # ---- Transfer

    def _transfer(self) -> str:
        case = self.case
        opened = open_objects(self.uris, self.credentials)
        verifier = verify_opened(case.verify, opened)
        placements: list[Placement] = []
        expected: list[bytes] = []
        for shard, file in zip(opened.shards, case.files, strict=True):
            for name, tensor in file.before.items():
                info = shard.tensors[name]
                placement, data = draw_placement(
                    self.draw, tensor, opened.shards.index(shard), info.start, len(placements)
                )
                placements.append(placement)
                expected.append(data)
        memory = [np.zeros(len(data), np.uint8) for data in expected]
        transfer = Transfer(
            plan_reads(placements, case.chunk_bytes),
            opened.items,
            opened.store,
            lambda number: memory[number].data,
            concurrency=case.concurrency,
            readers=opened.readers,
            verifier=verifier,
            hedge=case.hedge,
            deadline_s=self.deadline_s,
            staging_bytes=self.draw.choice([50_000, 1 << 20] if case.hangs else [0, 50_000, 1 << 20]),
            rate_limit_mb_s=self.draw.choice([None, None, 20.0]),
        )
        if case.end == "cancel":
            self.chance.events[case.end_at] = transfer.cancel
        # A wrong bit is known when all of its block is there: what was complete before that may have it.
        damaged = case.fatal in ("a bit flips", "damaged")
        try:
            for number in transfer.finished_groups():
                if not damaged and memory[number].tobytes() != expected[number]:
                    raise WrongOutcome(f"Wrong bytes in group {number} after {dict(self.chance.told)}.")
            transfer.wait()
            end = "complete"
        except Cancelled:
            end = "cancelled"
        finally:
            self._end(transfer)
            if verifier is not None:
                verifier.close()
        self.hedges = transfer.progress().hedges
        if end == "complete" and [each.tobytes() for each in memory] != expected:
            raise WrongOutcome("Something was written after the end.")
        return end

    def _end(self, transfer: Transfer) -> None:
        """No thread is left, and none writes."""
        transfer.cancel()
        _quietly(transfer.wait)
        running = set(threading.enumerate()) - self._others
        left = [thread.name for thread in running if thread.name.startswith("fetch-")]
        if left:
            raise WrongOutcome(f"Threads after the end: {left}")


def _quietly(wait: Callable[[], None]) -> None:
    """Wait for an end whose reason was told before."""
    try:
        wait()
    except (Cancelled, HeadraceError):
        return
