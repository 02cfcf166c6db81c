"""The hub's imitation over http and, with a private CA, https: models are folders of one gated repository."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from tests.hub_imitation import Hub, hub_imitation
from tests.stores.place import Place

REPOSITORY = "suite/models"
TOKEN = "hf_suite"


def place_in(hub: Hub, home: Path, tls: Tls | None = None) -> Place:
    hub.tokens.add(TOKEN)
    repository = hub.repository(REPOSITORY)
    repository.readers, repository.gated = frozenset({TOKEN}), True

    def put(model: Path, uri: str) -> None:
        hub.put(model, REPOSITORY, uri.removeprefix(f"hf://{REPOSITORY}/"))

    trust = {"REQUESTS_CA_BUNDLE": str(tls.certificate)} if tls else {}
    return Place(
        f"hf://{REPOSITORY}",
        {"HF_ENDPOINT": hub.hub_url, "HF_TOKEN": TOKEN, "HF_HOME": str(home), **trust},
        put=put,
        describes=("endpoint", "principal", "revision"),
    )


@pytest.fixture(scope="session")
def hub_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with hub_imitation() as hub:
        yield place_in(hub, tmp_path_factory.mktemp("hf-home"))


@pytest.fixture(scope="session")
def hub_tls_place(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Place]:
    with hub_imitation(loopback_tls) as hub:
        yield place_in(hub, tmp_path_factory.mktemp("hf-home"), loopback_tls)
