"""A bucket in another region is asked for there: once, remembered, and said in one line."""

import logging
from collections.abc import Callable, Iterator

import pytest

from headrace.store.base import read_whole
from headrace.store.errors import AccessDenied, WrongRegion
from headrace.store.s3.settings import resolve_s3_settings
from tests.faults.opening import environment_of, only_object, store_of
from tests.faults.server import Asked, FaultServer, fault_server

KEY = "model/model.safetensors"
DATA = b"some bytes"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def signed_for(asked: Asked) -> str:
    return asked.headers["authorization"].split("/")[2]


def lives_in(
    region: str, status: int = 301, *, header: bool = True, body: bytes = b""
) -> Callable[[Asked], bytes | None]:
    """Refuses what is signed for another region."""

    def refuse(asked: Asked) -> bytes | None:
        if signed_for(asked) == region:
            return None
        field = f"x-amz-bucket-region: {region}\r\n" if header else ""
        sent = b"" if asked.method == "HEAD" else body
        head = f"HTTP/1.1 {status} Elsewhere\r\n{field}Content-Length: {len(sent)}\r\n\r\n"
        return head.encode() + sent

    return refuse


MALFORMED = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-north-1'"
    b"</Message><Region>eu-north-1</Region></Error>"
)
ANSWERS = {
    "a redirect with the region in its head": lives_in("eu-north-1", 301),
    "a temporary redirect": lives_in("eu-north-1", 307),
    "a signature for another region": lives_in("eu-north-1", 400, header=False, body=MALFORMED),
    "a bare 400": lives_in("eu-north-1", 400),
    "a refusal by another region": lives_in(
        "eu-north-1", 403, body=b"<Error><Code>AccessDenied</Code></Error>"
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_bucket_in_another_region_is_read_there(answer: str, server: FaultServer) -> None:
    server.refuse = ANSWERS[answer]
    store = store_of(server)
    assert read_whole(store.open_reader(), only_object(store)) == DATA


def test_the_region_is_asked_for_once_and_remembered_by_everyone(server: FaultServer) -> None:
    server.refuse = lives_in("eu-north-1")
    store = store_of(server)
    readers = [store.open_reader() for _ in range(3)]  # opened before anything is known
    item = only_object(store)
    for reader in readers:
        read_whole(reader, item)
    assert [signed_for(asked) for asked in server.log].count("us-east-1") == 1


def test_the_region_that_was_found_is_said_in_one_line(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse = lives_in("eu-north-1")
    with caplog.at_level(logging.INFO, "headrace.store"):
        store = store_of(server)
        read_whole(store.open_reader(), only_object(store))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "s3://bucket is in the region eu-north-1" in line


def test_a_look_up_without_a_listing_finds_the_region_too(server: FaultServer) -> None:
    server.refuse = lives_in("eu-north-1")
    assert store_of(server).look_up("model.safetensors", 4).prefix == DATA[:4]


def test_a_store_that_always_names_another_region_is_given_up(server: FaultServer) -> None:
    regions = iter(["eu-north-1", "eu-west-1", "eu-south-1"])
    server.refuse = lambda asked: (
        f"HTTP/1.1 301 Elsewhere\r\nx-amz-bucket-region: {next(regions)}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    with pytest.raises(WrongRegion) as caught:
        store_of(server).list()
    assert caught.value.remedy == "Set AWS_REGION=eu-west-1."
    assert len(server.log) == 2


@pytest.mark.parametrize("region", ["attacker.example/", "a b", "x" * 64])
def test_what_can_be_no_region_is_not_followed(region: str, server: FaultServer) -> None:
    server.refuse = lives_in(region)
    with pytest.raises(WrongRegion):
        store_of(server).list()
    assert len(server.log) == 1


def test_a_refusal_in_the_right_region_is_a_refusal(server: FaultServer) -> None:
    server.refuse = lambda asked: (
        b"HTTP/1.1 403 No\r\nx-amz-bucket-region: us-east-1\r\nContent-Length: 45\r\n\r\n"
        b"<Error><Code>AccessDenied</Code></Error>     "
    )
    with pytest.raises(AccessDenied):
        store_of(server).list()


def test_amazons_own_endpoint_changes_with_the_region() -> None:
    settings = resolve_s3_settings({"AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/nowhere"})
    asked = settings.address_of("models")
    assert settings.move("models", "eu-north-1", asked)
    address = settings.address_of("models")
    assert (address.origin, address.region) == ("https://models.s3.eu-north-1.amazonaws.com", "eu-north-1")
    assert settings.address_of("others").region == "us-east-1"


def test_the_region_that_was_found_is_described(server: FaultServer) -> None:
    server.refuse = lives_in("eu-north-1")
    store = store_of(server)
    store.list()
    (region,) = [setting for setting in store.describe() if setting.name == "region"]
    assert region.value == "eu-north-1"
    assert region.origin.startswith("found out")


def test_what_pushes_asks_in_the_region_that_was_found(server: FaultServer) -> None:
    from headrace.store.s3.client import make_s3_client

    server.refuse = lives_in("eu-north-1")
    store = store_of(server)
    store.list()
    client = make_s3_client(store.settings, attempts=1, bucket="bucket")
    assert client.meta.region_name == "eu-north-1"
    assert resolve_s3_settings(environment_of(server)).address_of("bucket").region == "us-east-1"
