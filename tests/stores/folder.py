"""A folder of a local file system, and the same behind a plain web server with a private CA that asks for a token."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from tests.static_server import static_server
from tests.stores.place import Place


@pytest.fixture(scope="session")
def folder_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("models")

    def put(model: Path, uri: str) -> None:
        shutil.copytree(model, uri)

    return Place(str(folder), put=put)


@pytest.fixture(scope="session")
def web_place(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("served")
    with static_server(folder, loopback_tls) as server:
        server.token = "suite-token"

        def put(model: Path, uri: str) -> None:
            shutil.copytree(model, folder / uri.removeprefix(server.url + "/"))

        yield Place(
            f"{server.url}/models",
            {"REQUESTS_CA_BUNDLE": str(loopback_tls.certificate), "HEADRACE_HTTP_TOKEN": server.token},
            put=put,
            lists=False,
            describes=("endpoint", "principal"),
        )
