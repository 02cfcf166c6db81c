"""A container of Azure itself, where HEADRACE_TEST_AZURE_URI names one that may be written to."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.source.uri import parse_source
from headrace.store.azure.connection import AzureConnection
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.base import list_below, open_store
from tests.stores.place import Place
from tests.stores.real import BEFORE, real_place

# What the tests' surroundings set or clear, which Azure's own must see as it was.
_OURS = ("AZURE_TOKEN_CREDENTIALS", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET")


@pytest.fixture(scope="session")
def real_azure_place() -> Iterator[Place]:
    place = real_place("HEADRACE_TEST_AZURE_URI", ("endpoint", "account", "principal"))
    place = replace(place, environment={**place.environment, **{name: BEFORE.get(name) for name in _OURS}})
    yield place
    with place.entered():
        source = parse_source(place.uri)
        connection = AzureConnection(resolve_azure_settings(source), source.bucket, uri=source.uri)
        for item in list_below(open_store(source)):
            head = connection.send("DELETE", item.key, {}, {})
            assert head.status == 202
            connection.http.read_body()
        connection.http.close()
