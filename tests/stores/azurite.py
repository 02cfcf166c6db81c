"""Azurite over http with the account's key and, with a private CA, https with a shared access signature."""

from collections.abc import Iterator

import pytest

from headrace.demo.identity import Tls
from tests.azurite import account_signature, azurite
from tests.stores.place import Place

_DESCRIBES = ("endpoint", "account", "addressing", "principal")


@pytest.fixture(scope="session")
def azurite_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        server.make_container("suite")
        yield Place("az://suite/team/models", server.environment, describes=_DESCRIBES)


@pytest.fixture(scope="session")
def azurite_tls_place(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Place]:
    with azurite(tmp_path_factory.mktemp("azurite-tls"), loopback_tls) as server:
        server.make_container("suite")
        environment = {**server.place, "AZURE_STORAGE_SAS_TOKEN": account_signature("rlcw")}
        yield Place("az://suite/team/models", environment, describes=_DESCRIBES)
