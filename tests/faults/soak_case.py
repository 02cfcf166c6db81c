"""One load of the soak, drawn from a seed: what lies in the store, how it is loaded, and what happens to it."""

import json
import random
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import numpy.typing as npt

from headrace.source.files import INDEX_NAME, MANIFEST_NAME
from headrace.source.manifest import BLOCK_BYTES, ObjectSums, encode_manifest
from headrace.store.crc import CRC64NVME
from headrace.stream.verify.mode import VerifyMode
from tests.faults.server import FaultServer, Stored
from tests.faults.soak_faults import fatal_faults
from tests.stream.safetensors_files import Content, file_of

DTYPES: dict[str, npt.DTypeLike] = {
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F16": np.float16,
    "U8": np.uint8,
}
Tensors = dict[str, Content]


@dataclass(frozen=True, slots=True)
class File:
    """A safetensors object in two versions with one header."""

    name: str
    before: Tensors
    after: Tensors

    def versions(self) -> tuple[bytes, bytes]:
        """The bytes of both."""
        return file_of(self.before), file_of(self.after)


@dataclass(frozen=True, slots=True)
class Case:
    """What a seed means.

    Attributes:
        scheme: "s3" or "http".
        way: "file", "folder" (load_file), "streamer" or "transfer".
        fatal, fatal_at: what ends the load and at which request for weights; "" for nothing.
        end, end_at: "all"; or "leave" (the consumer, after so many tensors), "interrupt" or "cancel" (at that request
            for weights).
        rotates_at: at which request for weights the credentials are replaced; 0 for never.
        weak: the store gives weak ETags.
        tls: by https.
        hangs: a last chunk hangs for so long that only a second connection can bring it; all else is well.
    """

    seed: int
    scheme: str
    way: str
    files: tuple[File, ...]
    chunk_bytes: int
    concurrency: int | None
    memory_limit: int | None
    hedge: bool
    verify: VerifyMode
    manifest: bool
    rate: float
    silent: bool
    closes: bool
    bursts: tuple[tuple[int, int], ...]
    fatal: str
    fatal_at: int
    end: str
    end_at: int
    rotates_at: int
    restart: bool
    weak: bool
    tls: bool
    hangs: bool = False


def draw_case(seed: int) -> Case:
    """The same for the same seed."""
    chance = random.Random(seed)
    way = chance.choice(["file", "folder", "streamer", "streamer", "transfer", "transfer"])
    scheme = chance.choice(["s3", "s3", "http"])
    count = 1 if way == "file" else chance.choice([1, 1, 2, 4])
    files = tuple(_file(chance, number, count) for number in range(1, count + 1))
    verify: VerifyMode = "off"
    manifest = False
    if chance.random() < 0.4:
        manifest = count > 1 or scheme == "http" or chance.random() < 0.5
        verify = chance.choice(["manifest", "auto", "require"]) if manifest else "auto"
    end = "all"
    if chance.random() < 0.3:
        end = {"streamer": "leave", "transfer": "cancel"}.get(way, "interrupt")
    whole = end == "all" and way != "streamer"
    kinds = [
        name
        for name, kind in fatal_faults(lambda data: data).items()
        if kind.only in ("", scheme)
        and (name not in ("a bit flips", "damaged") or (verify != "off" and whole))
    ]
    fatal = (
        kinds[seed % len(kinds)] if chance.random() < 0.6 else ""
    )  # in turn, so that few seeds have many of them
    if verify != "off" and whole and chance.random() < 0.3:
        fatal = chance.choice(["a bit flips", "damaged"])
    total = sum(len(tensor.data) for file in files for tensor in file.before.values())
    largest = max(len(tensor.data) for file in files for tensor in file.before.values())
    case = Case(
        seed=seed,
        scheme=scheme,
        way=way,
        files=files,
        chunk_bytes=chance.choice([4096, 10_000, 30_000, 100_000, 1 << 20]),
        concurrency=chance.choice([None, 1, 2, 5, 20]),
        memory_limit=chance.choice([None, -1, 0, largest + 10_000, total // 2 + largest]),
        hedge=chance.random() < 0.7,
        verify=verify,
        manifest=manifest,
        rate=chance.choice([0.0, 0.1, 0.3, 0.6]),
        silent=chance.random() < 0.15 and fatal != "silent for ever",  # whose patience is long
        closes=chance.random() < 0.15,
        bursts=tuple(
            (chance.randint(1, 60), chance.randint(3, 25)) for _ in range(chance.choice([0, 0, 1, 2]))
        ),
        fatal=fatal,
        fatal_at=chance.choice([1, 2, 3, chance.randint(1, 20), chance.randint(1, 60)]),
        end=end,
        end_at=chance.choice([1, 2, chance.randint(1, 10), chance.randint(1, 40)]),
        rotates_at=chance.randint(1, 20) if scheme == "s3" and fatal == "" and chance.random() < 0.15 else 0,
        restart=whole
        and way in ("file", "folder")
        and fatal.startswith("replaced")
        and chance.random() < 0.6,
        weak=chance.random() < 0.1,
        tls=chance.random() < 0.25,
    )
    if way == "streamer" or chance.random() > 0.08:
        return case
    # Small chunks, as second connections read a twentieth of all bytes at the most.
    return replace(
        case,
        hangs=True,
        hedge=True,
        concurrency=chance.choice([None, 2, 20]),
        chunk_bytes=chance.choice([4096, 10_000]),
        rate=0.0,
        silent=False,
        bursts=(),
        fatal="",
        end="all",
        rotates_at=0,
        restart=False,
    )


def _file(chance: random.Random, number: int, count: int) -> File:
    """Some tensors of any size, or very many tiny ones, or both."""
    before: Tensors = {}
    after: Tensors = {}
    many = chance.random() < 0.15
    for at in range(chance.randint(1, 12) + (chance.randint(100, 400) if many else 0)):
        dtype = chance.choice(sorted(DTYPES))
        rows = 1 if many and at > 10 else chance.choice([1, 2, chance.randint(1, 30), chance.randint(1, 300)])
        shape = (rows, chance.choice([1, 3, chance.randint(1, 60), chance.randint(1, 400)]))
        if chance.random() < 0.05:
            shape = (0, 4)
        name = f"layer.{number}.{at}"
        before[name], after[name] = _content(chance, dtype, shape), _content(chance, dtype, shape)
    # Something is there to be read behind what comes with the header.
    before["last"] = before.pop("last", _content(chance, "U8", (300, 1000)))
    after["last"] = _content(chance, "U8", (300, 1000))
    if count > 1:
        before[f"last.{number}"], after[f"last.{number}"] = before.pop("last"), after.pop("last")
        return File(f"model-{number:05}-of-{count:05}.safetensors", before, after)
    return File("model.safetensors", before, after)


def _content(chance: random.Random, dtype: str, shape: tuple[int, int]) -> Content:
    """Whole numbers, which every format holds or rounds the same way."""
    size = shape[0] * shape[1]
    numbers = np.frombuffer(chance.randbytes(size), np.uint8).reshape(shape)
    return Content(dtype, shape, numbers.astype(DTYPES[dtype]).tobytes())


def fill(server: FaultServer, case: Case) -> None:
    """Put the objects of a case into a store, under model/ and once more where redirects lead to."""
    sums: dict[str, ObjectSums] = {}
    weight_map: dict[str, str] = {}
    for file in case.files:
        data, _ = file.versions()
        stored = Stored.of(data)
        if case.weak:
            stored = Stored(data, f"W/{stored.etag}")
        server.objects[f"model/{file.name}"] = server.objects[f"moved/{file.name}"] = stored
        blocks = range(0, len(data), BLOCK_BYTES)
        sums[file.name] = ObjectSums(
            len(data), BLOCK_BYTES, tuple(CRC64NVME.of([data[at : at + BLOCK_BYTES]]) for at in blocks)
        )
        weight_map.update(dict.fromkeys(file.before, file.name))
        if len(case.files) == 1 and not case.manifest:
            server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(CRC64NVME.of([data]))}
    if len(case.files) > 1:
        index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
        server.objects[f"model/{INDEX_NAME}"] = server.objects[f"moved/{INDEX_NAME}"] = Stored.of(index)
    if case.manifest:
        made = Stored.of(encode_manifest(sums))
        server.objects[f"model/{MANIFEST_NAME}"] = server.objects[f"moved/{MANIFEST_NAME}"] = made
