"""What the hub refuses, and what a person is told to do about it."""

from collections.abc import Iterator

import pytest

from headrace.demo.identity import Tls
from headrace.source.uri import parse_source
from headrace.store.base import open_store, read_whole
from headrace.store.errors import (
    AccessDenied,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TlsError,
    TransientError,
    Truncated,
    Unreachable,
    Unsupported,
)
from tests.hub_imitation import Hub, hub_imitation
from tests.store.hub_opening import FILES, NAME, TOKEN, store_of, weights_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub whose only model TOKEN may read."""
    with hub_imitation() as running:
        running.tokens |= {TOKEN, "hf_other"}
        running.repository(NAME).commit(FILES)
        running.repositories[NAME].readers = frozenset({TOKEN})
        yield running


def refusal(hub: Hub, uri: str = f"hf://{NAME}", **variables: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store_of(hub, uri, **variables).list()
    assert all(token not in str(caught.value) for token in (TOKEN, "hf_other", "hf_unknown"))
    return caught.value


def test_a_gated_model_without_a_token_asks_for_licence_and_token(hub: Hub) -> None:
    hub.repositories[NAME].gated = True
    error = refusal(hub)
    assert isinstance(error, NoCredentials)
    assert (error.status, error.code, error.request_id) == (401, "GatedRepo", "Root=1-imitation")
    assert f"Accept its licence at {hub.hub_url}/{NAME} and set HF_TOKEN" in error.remedy


def test_a_gated_model_with_anothers_token_says_whose_licence_is_missing(hub: Hub) -> None:
    hub.repositories[NAME].gated = True
    error = refusal(hub, HF_TOKEN="hf_other")
    assert isinstance(error, AccessDenied)
    assert "in HF_TOKEN may not read it" in error.cause
    assert f"Accept its licence at {hub.hub_url}/{NAME}" in error.remedy


def test_a_model_may_be_listed_and_yet_be_gated(hub: Hub) -> None:
    store = store_of(hub, HF_TOKEN=TOKEN)
    item = weights_of(store)
    hub.repositories[NAME].readers, hub.repositories[NAME].gated = frozenset(), True
    with pytest.raises(AccessDenied, match="gated"):
        read_whole(store.open_reader(), item)


@pytest.mark.parametrize("uri", [f"hf://{NAME}", "hf://org/absent"])
def test_private_and_absent_look_the_same_without_a_token(hub: Hub, uri: str) -> None:
    error = refusal(hub, uri)
    assert isinstance(error, NotFound)
    assert "no such model on the hub" in error.cause
    assert "set HF_TOKEN" in error.remedy


def test_private_and_absent_look_the_same_with_anothers_token(hub: Hub) -> None:
    error = refusal(hub, HF_TOKEN="hf_other")
    assert isinstance(error, NotFound)
    assert "with the token in HF_TOKEN" in error.remedy


def test_a_hub_that_refuses_what_is_not_there_is_understood(hub: Hub) -> None:
    hub.answers = [(401, {"X-Error-Code": "RepoNotFound"})]
    assert isinstance(refusal(hub, HF_TOKEN=TOKEN), NotFound)


def test_a_plain_name_that_is_nowhere_says_both(hub: Hub) -> None:
    error = refusal(hub, "org/absent")
    assert "There is no folder org/absent here, and there is no such model on the hub" in error.cause
    assert "write ./org/absent" in error.remedy


def test_a_revision_that_is_not_there_is_named(hub: Hub) -> None:
    error = refusal(hub, f"hf://{NAME}@v9", HF_TOKEN=TOKEN)
    assert isinstance(error, NotFound)
    assert "no revision v9" in error.cause


def test_a_token_that_the_hub_does_not_know_is_named_by_its_variable(hub: Hub) -> None:
    error = refusal(hub, HF_TOKEN="hf_unknown")
    assert isinstance(error, AccessDenied)
    assert "does not take the token in HF_TOKEN" in error.cause
    assert "huggingface.co/settings/tokens" in error.remedy


def test_what_a_token_may_not_do_is_said_in_the_hubs_words(hub: Hub) -> None:
    hub.answers = [(403, {"X-Error-Message": "Please enable access to public gated repositories"})]
    error = refusal(hub, HF_TOKEN=TOKEN)
    assert isinstance(error, AccessDenied)
    assert "Please enable access to public gated repositories" in error.cause


def test_a_disabled_model_is_told(hub: Hub) -> None:
    hub.answers = [(403, {"X-Error-Message": "Access to this resource is disabled."})]
    assert "disabled this model" in refusal(hub).cause


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=12;t=55'}, None),
        ({}, None),
    ],
)
def test_a_hub_that_asks_to_slow_down_says_for_how_long(
    hub: Hub, headers: dict[str, str], seconds: float | None
) -> None:
    hub.answers = [(429, headers)]
    error = refusal(hub)
    assert isinstance(error, Throttled)
    assert error.retry_after_s == seconds
    assert "set HF_TOKEN" in error.remedy


def test_where_its_files_are_may_ask_to_slow_down_too(hub: Hub) -> None:
    store = store_of(hub, HF_TOKEN=TOKEN)
    item = weights_of(store)
    hub.repositories[NAME].readers = None
    anonymous = store_of(hub)
    for each in (store, anonymous):
        hub.cdn_answers = [(503, {"Retry-After": "3"})]
        with pytest.raises(Throttled) as caught:
            read_whole(each.open_reader(), item)
        assert (caught.value.retry_after_s, caught.value.remedy) == (3.0, "")


def test_a_file_that_is_shorter_than_listed_is_told(hub: Hub) -> None:
    store = store_of(hub, HF_TOKEN=TOKEN)
    item = weights_of(store)
    hub.cdn_answers = [(416, {})]
    with pytest.raises(Truncated, match="shorter than the hub's listing says"):
        read_whole(store.open_reader(), item)


@pytest.mark.parametrize("status", [500, 502, 504, 408])
def test_a_hub_that_fails_is_worth_another_try(hub: Hub, status: int) -> None:
    hub.answers = [(status, {})]
    assert isinstance(refusal(hub), TransientError)


def test_an_answer_that_means_nothing_is_unsupported(hub: Hub) -> None:
    hub.answers = [(418, {})]
    assert isinstance(refusal(hub), Unsupported)


def test_a_hub_that_is_not_reached_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unreachable) as caught:
        open_store(parse_source(f"hf://{NAME}")).list()
    assert "HF_ENDPOINT" in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_told(loopback_tls: Tls) -> None:
    with hub_imitation(loopback_tls) as hub:
        error = refusal(hub)
        assert isinstance(error, TlsError)
        hub.repository(NAME).commit(FILES)
        assert store_of(hub, REQUESTS_CA_BUNDLE=str(loopback_tls.certificate)).list().find("config.json")


def test_the_hub_may_not_lead_from_tls_to_plain_http(loopback_tls: Tls) -> None:
    with hub_imitation(loopback_tls) as hub:
        hub.answers = [(302, {"Location": "http://127.0.0.1:9/plain"})]
        with pytest.raises(Unsupported, match="from https:// to http://"):
            store_of(hub, REQUESTS_CA_BUNDLE=str(loopback_tls.certificate)).list()
