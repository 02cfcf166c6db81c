"""Buckets of real clouds, where a variable names one that may be written to: HEADRACE_TEST_S3_URI=s3://bucket/prefix.

The tests clear the variables of clouds, so what was set is kept here when this module is imported.
"""

import os
import secrets
from collections.abc import Iterator, Mapping

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import list_below, open_store
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.stores.place import Place

_PREFIXES = ("AWS_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
BEFORE: Mapping[str, str] = dict(os.environ)
# What the tests' surroundings set, which a real cloud must not see.
_OURS = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_EC2_METADATA_DISABLED")


def named(variable: str) -> bool:
    """Whether whoever runs the tests names a bucket in this variable."""
    return bool(BEFORE.get(variable))


def real_place(variable: str, describes: tuple[str, ...]) -> Place:
    """A new prefix in the bucket that the variable names, seen with what was set when the tests began."""
    given = {name: value for name, value in BEFORE.items() if name.upper().startswith(_PREFIXES)}
    environment: dict[str, str | None] = {**dict.fromkeys(_OURS), "HOME": BEFORE.get("HOME"), **given}
    uri = f"{BEFORE[variable].rstrip('/')}/headrace-test-{secrets.token_hex(6)}"
    return Place(uri, environment, describes=describes)


@pytest.fixture(scope="session")
def real_s3_place() -> Iterator[Place]:
    place = real_place("HEADRACE_TEST_S3_URI", ("endpoint", "region", "principal"))
    yield place
    with place.entered():
        source = parse_source(place.uri)
        client = make_s3_client(resolve_s3_settings(), attempts=3)
        for item in list_below(open_store(source)):
            client.delete_object(Bucket=source.bucket, Key=item.key)
