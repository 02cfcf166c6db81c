"""SeaweedFS with the bucket in the host's name, which only a proxy on the way can find."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.demo.store import start_store
from tests.store.forward_proxy import forward_proxy
from tests.stores.place import Place
from tests.stores.seaweed import place_in

_DOMAIN = f"s3-{secrets.token_hex(3)}.test"


@pytest.fixture(scope="session")
def seaweed_virtual_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with start_store(tmp_path_factory.mktemp("seaweed-virtual"), domain=_DOMAIN) as store:
        port = store.endpoint_url.rpartition(":")[2]
        with forward_proxy(int(port)) as proxy:
            place = place_in(store)
            yield replace(
                place,
                environment={
                    **place.environment,
                    "AWS_ENDPOINT_URL": f"http://{_DOMAIN}:{port}",
                    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1",
                    "HTTP_PROXY": f"http://{proxy.address}",
                    "http_proxy": f"http://{proxy.address}",
                    "NO_PROXY": "127.0.0.1,localhost",
                    "no_proxy": "127.0.0.1,localhost",
                },
            )
