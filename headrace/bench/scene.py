"""What a measuring process is told and what it tells: data that travels as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Object:
    """One safetensors object and its names.

    Attributes:
        uri: as Headrace reads it: "s3://bucket/key", a URL or an absolute path.
        size_bytes: its size.
        path: the file, or "".
        url: where a plain GET finds it (signed for a bucket), or "" for a file.
        s3_uri: as clients that know nothing but S3 must call it; "" for a file, or where there is no such name.
    """

    uri: str
    size_bytes: int
    path: str = ""
    url: str = ""
    s3_uri: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """One run: which loader reads what. Credentials are not in here: they travel in the environment.

    Attributes:
        loader: the name of a module in `loaders`.
        objects: what is loaded, in this order.
        signed: requests for the URLs must be signed with the AWS variables.
        endpoint_url, path_style: of the S3 form of the objects.
        ca_bundle: a file of CA certificates that the server's is signed by; None for the system's.
        connections: at the most so many at a time; None leaves it to the loader.
        limit_bytes: the bare loop stops after so many; None reads all.
        probe: load nothing, tell the versions.
    """

    loader: str
    objects: tuple[Object, ...] = ()
    signed: bool = False
    endpoint_url: str = ""
    path_style: bool = True
    ca_bundle: str | None = None
    connections: int | None = None
    limit_bytes: int | None = None
    probe: bool = False

    @property
    def size_bytes(self) -> int:
        """All objects together."""
        return sum(item.size_bytes for item in self.objects)

    def to_json(self) -> str:
        """The scene as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Scene":
        """What `to_json` wrote."""
        facts: dict[str, Any] = json.loads(text)
        facts["objects"] = tuple(Object(**item) for item in facts["objects"])
        return Scene(**facts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One load, measured inside the process that did it, without imports and without the process's start.

    Attributes:
        wall_s: from the call to the last tensor.
        user_s, system_s: CPU seconds of the process and of those that it started and waited for.
        peak_bytes: the most memory that was resident at a time, less what was resident before.
        tensor_bytes: bytes of the tensors (for the bare loop: of the objects).
        tensors: how many there were; 0 for the bare loop.
        first_tensor_s: until the first tensor could be used; None where it has no meaning.
        requests: GETs that were sent; None where the loader does not tell.
        digest: equal for loaders that gave the same names and bytes (a sample of each tensor); "" for the loop.
        facts: what else a loader tells of itself: concurrency, retries, hedges.
    """

    wall_s: float
    user_s: float
    system_s: float
    peak_bytes: int
    tensor_bytes: int
    tensors: int
    first_tensor_s: float | None
    requests: int | None
    digest: str
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float:
        """User and system together."""
        return self.user_s + self.system_s

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @staticmethod
    def from_dict(facts: dict[str, Any]) -> "Measurement":
        """What `to_dict` gave."""
        return Measurement(**facts)
