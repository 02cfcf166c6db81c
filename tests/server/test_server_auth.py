"""The API key guards every route that is not a probe."""

from collections.abc import Iterator

import msgspec
import pytest
from front_harness import OPTIONS, Front, running_front

KEY = "sésame"
RIGHT = {"Authorization": f"Bearer {KEY}".encode()}


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front(options=msgspec.structs.replace(OPTIONS, api_key=KEY)) as running:
        yield running


@pytest.mark.parametrize(
    "path", ["/v1/models", "/model_info", "/server_info", "/health_generate", "/nowhere"]
)
def test_every_other_route_asks_for_it(front: Front, path: str) -> None:
    response = front.http.get(path)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_generating_asks_for_it(front: Front) -> None:
    assert front.complete().status_code == 401
    assert front.chat().status_code == 401


@pytest.mark.parametrize("header", [KEY, f"Basic {KEY}", "Bearer wrong", "Bearer", f"Bearer {KEY}2"])
def test_nothing_but_the_bearer_key_opens(front: Front, header: str) -> None:
    response = front.http.get("/v1/models", headers={"Authorization": header.encode()})
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert KEY not in response.text


def test_the_key_opens(front: Front) -> None:
    assert front.http.get("/v1/models", headers=RIGHT).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
def test_probes_need_none(front: Front, path: str) -> None:
    assert front.http.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/health/", "//health", "/healthy", "/ready/../v1/models"])
def test_a_path_that_only_resembles_a_probe_does_not_open(front: Front, path: str) -> None:
    assert front.http.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/server_info", "/model_info", "/v1/models"])
def test_it_is_never_shown(front: Front, path: str) -> None:
    assert KEY not in front.http.get(path, headers=RIGHT).text
