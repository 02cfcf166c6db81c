"""Presigned addresses of a real store: what its own client signs is read without any credentials of ours."""

import random
from typing import Any

import pytest

from headrace.demo.store import SeaweedStore
from headrace.source.object_uri import parse_object
from headrace.store.base import read_range, read_whole
from headrace.store.errors import AccessDenied, Changed, StoreError
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.web.settings import resolve_web_settings
from headrace.store.web.store import HttpStore

DATA = random.Random(12).randbytes(100_000)
NAME = "model 1+2.safetensors"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def client(seaweed: SeaweedStore) -> Any:
    made = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    made.create_bucket(Bucket="presigned")
    made.put_object(Bucket="presigned", Key=f"a b/{NAME}", Body=DATA)
    return made


def address(client: Any, seconds: int = 60) -> str:
    asked = {"Bucket": "presigned", "Key": f"a b/{NAME}"}
    signed: str = client.generate_presigned_url("get_object", asked, ExpiresIn=seconds)
    return signed


def test_an_object_is_read_by_ranges_from_its_presigned_address(client: Any) -> None:
    source, name = parse_object(address(client))
    assert name == NAME
    store = HttpStore(source, resolve_web_settings({"HEADRACE_HTTP_TOKEN": "not-for-this"}))
    found = store.look_up(name, 1_000)
    assert found.prefix == DATA[:1_000]
    reader = store.open_reader()
    assert read_range(reader, found.item, 50_000, 10_000) == DATA[50_000:60_000]
    assert read_whole(reader, found.item) == DATA
    reader.close()


def test_an_object_that_is_replaced_under_its_presigned_address_is_a_change(client: Any) -> None:
    client.put_object(Bucket="presigned", Key="other", Body=DATA)
    signed = client.generate_presigned_url("get_object", {"Bucket": "presigned", "Key": "other"})
    source, name = parse_object(signed)
    store = HttpStore(source, resolve_web_settings({}))
    item = store.look_up(name, 10).item
    client.put_object(Bucket="presigned", Key="other", Body=DATA[::-1])
    with pytest.raises(Changed) as caught:
        read_whole(store.open_reader(), item)
    assert "Signature" not in str(caught.value)


@pytest.mark.parametrize("spoil", [lambda url: url.replace("a%20b", "a%20c"), lambda url: url[:-4] + "0000"])
def test_a_presigned_address_that_was_tampered_with_is_refused(client: Any, spoil: Any) -> None:
    source, name = parse_object(spoil(address(client)))
    with pytest.raises(AccessDenied) as caught:
        HttpStore(source, resolve_web_settings({})).look_up(name, 10)
    assert "Signature=" not in str(caught.value)


def test_a_presigned_address_for_another_method_is_refused(client: Any) -> None:
    asked = {"Bucket": "presigned", "Key": f"a b/{NAME}"}
    source, name = parse_object(client.generate_presigned_url("head_object", asked))
    with pytest.raises(StoreError, match="presigned address"):
        HttpStore(source, resolve_web_settings({})).look_up(name, 10)
