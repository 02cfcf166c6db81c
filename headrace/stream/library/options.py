"""What a load of tensors may be told beyond what, from where and where to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from headrace.stream.library.arguments import texts
from headrace.stream.library.indexing import Index
from headrace.stream.library.tensors import Framework
from headrace.stream.select import TensorParallel
from headrace.stream.variables import LEAST_CHUNK_BYTES, StreamSettings, check_least, check_positive
from headrace.stream.verify.mode import VerifyMode


class LoadOptions(TypedDict, total=False):
    """As keywords of a call; see SafetensorsStreamer.stream_files."""

    names: Iterable[str] | None
    slices: Mapping[str, Index] | None
    tensor_parallel: TensorParallel | None
    memory_limit: int | None
    concurrency: int | None
    chunk_bytes: int | None
    rate_limit_mb_s: float | None
    deadline_s: float | None
    verify: VerifyMode


class StreamOptions(LoadOptions, total=False):
    """The same with what is made of the bytes."""

    framework: Framework


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOptions:
    """The same as a value, with what holds where nothing was said."""

    framework: Framework = "pt"
    names: Iterable[str] | None = None
    slices: Mapping[str, Index] | None = None
    tensor_parallel: TensorParallel | None = None
    memory_limit: int | None = None
    concurrency: int | None = None
    chunk_bytes: int | None = None
    rate_limit_mb_s: float | None = None
    deadline_s: float | None = None
    verify: VerifyMode = "off"


def checked(options: TensorOptions, settings: StreamSettings) -> TensorOptions:
    """The same with what the environment says where a caller does not. Raises BadSetting for what cannot be."""
    return replace(
        options,
        concurrency=check_least(options.concurrency, 1, "concurrency") or settings.concurrency,
        chunk_bytes=check_least(options.chunk_bytes, LEAST_CHUNK_BYTES, "chunk_bytes")
        or settings.chunk_bytes,
        rate_limit_mb_s=check_positive(options.rate_limit_mb_s, "rate_limit_mb_s"),
        deadline_s=check_positive(options.deadline_s, "deadline_s"),
        names=texts(options.names, "names") if options.names is not None else None,
    )
