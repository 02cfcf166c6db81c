"""Headrace: an LLM server that starts from a bucket, and the streamer that it loads with.

The names below are imported when they are first used: `import headrace` itself loads neither torch nor numpy.
"""

TYPE_CHECKING = False  # type checkers know the name; typing itself would cost half of this import
if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace.source.bad_source import BadSource
    from headrace.store.errors import (
        AccessDenied,
        BadEndpoint,
        BadSignature,
        Changed,
        Corrupt,
        ExpiredCredentials,
        NoCredentials,
        NotFound,
        StoreError,
        Throttled,
        TimedOut,
        TlsError,
        TransientError,
        Truncated,
        Unreachable,
        Unsupported,
        WrongRegion,
    )
    from headrace.store.threads import TooManyThreads
    from headrace.stream.checkpoint.header import BadHeader
    from headrace.stream.library.credentials import S3Credentials
    from headrace.stream.library.lazy_checkpoint import LazyCheckpoint, LazyTensor, open_checkpoint
    from headrace.stream.library.load import load_file
    from headrace.stream.library.map_file import map_file
    from headrace.stream.library.memory_limit import MemoryLimitTooSmall
    from headrace.stream.library.memory_room import NotEnoughMemory
    from headrace.stream.library.streamer import SafetensorsStreamer
    from headrace.stream.library.tensor_stream import StreamerMisused
    from headrace.stream.pulling.object_storage_model import ObjectStorageModel
    from headrace.stream.pulling.pull import list_safetensors, pull_files
    from headrace.stream.pulling.writing import CannotWrite
    from headrace.stream.ranks.errors import PeerFailed, PeerLost, RanksDisagree
    from headrace.stream.ranks.group import RanksCannotMeet
    from headrace.stream.select import TensorParallel
    from headrace.stream.transfer.ledger import DeadlineExceeded
    from headrace.stream.verify.sums import NotVerifiable

__version__ = "0.1.0"

_STORE_ERRORS = (
    "AccessDenied", "BadEndpoint", "BadSignature", "Changed", "Corrupt", "ExpiredCredentials", "NoCredentials",
    "NotFound", "StoreError", "Throttled", "TimedOut", "TlsError", "TransientError", "Truncated", "Unreachable",
    "Unsupported", "WrongRegion",
)  # fmt: skip
_PLACES = {
    "HeadraceError": "headrace.errors",
    **dict.fromkeys(_STORE_ERRORS, "headrace.store.errors"),
    "BadHeader": "headrace.stream.checkpoint.header",
    "BadSource": "headrace.source.bad_source",
    "CannotWrite": "headrace.stream.pulling.writing",
    "DeadlineExceeded": "headrace.stream.transfer.ledger",
    "LazyCheckpoint": "headrace.stream.library.lazy_checkpoint",
    "LazyTensor": "headrace.stream.library.lazy_checkpoint",
    "MemoryLimitTooSmall": "headrace.stream.library.memory_limit",
    "NotEnoughMemory": "headrace.stream.library.memory_room",
    "NotVerifiable": "headrace.stream.verify.sums",
    "ObjectStorageModel": "headrace.stream.pulling.object_storage_model",
    "PeerFailed": "headrace.stream.ranks.errors",
    "PeerLost": "headrace.stream.ranks.errors",
    "TooManyThreads": "headrace.store.threads",
    "RanksCannotMeet": "headrace.stream.ranks.group",
    "RanksDisagree": "headrace.stream.ranks.errors",
    "S3Credentials": "headrace.stream.library.credentials",
    "SafetensorsStreamer": "headrace.stream.library.streamer",
    "StreamerMisused": "headrace.stream.library.tensor_stream",
    "TensorParallel": "headrace.stream.select",
    "list_safetensors": "headrace.stream.pulling.pull",
    "load_file": "headrace.stream.library.load",
    "map_file": "headrace.stream.library.map_file",
    "open_checkpoint": "headrace.stream.library.lazy_checkpoint",
    "pull_files": "headrace.stream.pulling.pull",
}

__all__ = [
    "AccessDenied",
    "BadEndpoint",
    "BadHeader",
    "BadSignature",
    "BadSource",
    "CannotWrite",
    "Changed",
    "Corrupt",
    "DeadlineExceeded",
    "ExpiredCredentials",
    "HeadraceError",
    "LazyCheckpoint",
    "LazyTensor",
    "MemoryLimitTooSmall",
    "NoCredentials",
    "NotEnoughMemory",
    "NotFound",
    "NotVerifiable",
    "ObjectStorageModel",
    "PeerFailed",
    "PeerLost",
    "RanksCannotMeet",
    "RanksDisagree",
    "S3Credentials",
    "SafetensorsStreamer",
    "StoreError",
    "StreamerMisused",
    "TensorParallel",
    "Throttled",
    "TimedOut",
    "TlsError",
    "TooManyThreads",
    "TransientError",
    "Truncated",
    "Unreachable",
    "Unsupported",
    "WrongRegion",
    "__version__",
    "list_safetensors",
    "load_file",
    "map_file",
    "open_checkpoint",
    "pull_files",
]


if not TYPE_CHECKING:  # for a type checker the names are those above, and no others

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_PLACES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*__all__, *globals()})
