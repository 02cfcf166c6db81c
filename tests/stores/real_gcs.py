"""A bucket of Cloud Storage itself, where HEADRACE_TEST_GCS_URI names one that may be written to."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import list_below, open_store
from headrace.store.gcs.connection import GcsConnection, object_target
from headrace.store.gcs.settings import resolve_gcs_settings
from headrace.store.gcs.sign_in import WRITE_SCOPE
from tests.stores.place import Place
from tests.stores.real import BEFORE, real_place

# What the tests' surroundings set, which Google's own must not see.
_OURS = ("CLOUDSDK_CONFIG", "NO_GCE_CHECK")


@pytest.fixture(scope="session")
def real_gcs_place() -> Iterator[Place]:
    place = real_place("HEADRACE_TEST_GCS_URI", ("endpoint", "principal"))
    place = replace(place, environment={**place.environment, **{name: BEFORE.get(name) for name in _OURS}})
    yield place
    with place.entered():
        source = parse_source(place.uri)
        connection = GcsConnection(resolve_gcs_settings(scope=WRITE_SCOPE), uri=source.uri)
        for item in list_below(open_store(source)):
            head = connection.send("DELETE", object_target(source.bucket, item.key, {}), {})
            assert head.status == 204
            connection.http.read_body()
        connection.http.close()
