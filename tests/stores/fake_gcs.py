"""fake-gcs-server over http and, with a private CA, https."""

from collections.abc import Iterator

import pytest

from headrace.demo.identity import Tls
from tests.fake_gcs import FakeGcs, fake_gcs
from tests.stores.place import Place


def place_in(server: FakeGcs) -> Place:
    server.make_bucket("suite")
    return Place("gs://suite/team/models", server.environment, describes=("endpoint", "principal"))


@pytest.fixture(scope="session")
def fake_gcs_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield place_in(server)


@pytest.fixture(scope="session")
def fake_gcs_tls_place(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Place]:
    with fake_gcs(tmp_path_factory.mktemp("fake-gcs-tls"), loopback_tls) as server:
        yield place_in(server)
