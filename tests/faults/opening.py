"""Seeing a FaultServer through the real S3Store."""

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import Target
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from tests.faults.server import FaultServer

SECRET = "scripted-secret-key-0123456789"
ACCESS_KEY = "AKSCRIPTED0123456789"
# For tests of a stall. On a busy machine a healthy server may be silent for longer.
STALL_TIMEOUT_S = 0.75
PATIENT_S = 60.0


def environment_of(server: FaultServer) -> dict[str, str]:
    """The variables that lead to the server."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def store_of(
    server: FaultServer, uri: str = "s3://bucket/model", *, stall_timeout_s: float = PATIENT_S
) -> S3Store:
    """The store; where a stall is what is tested, with STALL_TIMEOUT_S."""
    settings = resolve_s3_settings(environment_of(server))
    return S3Store(parse_source(uri), settings, stall_timeout_s=stall_timeout_s)


def only_object(store: S3Store) -> ObjectInfo:
    """The one object under the prefix, as listed."""
    listing: Listing = store.list()
    (item,) = listing.objects
    return item


def target_of(length: int) -> tuple[bytearray, Target]:
    """Memory for a range, and the target over it."""
    memory = bytearray(length)
    return memory, Target([memoryview(memory)])


def one_byte() -> Target:
    """Room for one byte."""
    return target_of(1)[1]
