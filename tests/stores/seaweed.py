"""SeaweedFS over http and, with a private CA, https."""

import secrets
from collections.abc import Iterator

import pytest

from headrace.demo.identity import Tls
from headrace.demo.store import SeaweedStore, start_store
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.stores.place import Place


def place_in(store: SeaweedStore) -> Place:
    """A new bucket of the store."""
    bucket = f"suite-{secrets.token_hex(4)}"
    make_s3_client(resolve_s3_settings(store.environment()), attempts=1).create_bucket(Bucket=bucket)
    return Place(
        f"s3://{bucket}/team/models",
        dict(store.environment()),
        describes=("endpoint", "region", "principal"),
    )


@pytest.fixture(scope="session")
def seaweed_place(seaweed: SeaweedStore) -> Place:
    return place_in(seaweed)


@pytest.fixture(scope="session")
def seaweed_tls_place(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Place]:
    with start_store(tmp_path_factory.mktemp("seaweed-tls"), tls=loopback_tls) as store:
        yield place_in(store)
