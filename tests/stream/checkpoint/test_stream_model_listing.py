"""The listing of a model with its folders of templates, and of all that lies below a place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import open_store
from headrace.store.errors import Unsupported
from headrace.stream.checkpoint.model_listing import list_all_below, list_with_templates
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, Stored, error_answer, fault_server

MODEL = {
    "model/config.json": b"{}",
    "model/additional_chat_templates/rag.jinja": b"x",
    "model/additional_chat_templates/README.md": b"x",
    "model/templates/tool.jinja": b"x",
    "model/original/model.safetensors": b"x",
}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server(MODEL) as running:
        yield running


def test_templates_of_a_bucket_are_listed_with_the_model(server: FaultServer) -> None:
    listing = list_with_templates(store_of(server))
    assert [item.name for item in listing.objects] == [
        "additional_chat_templates/rag.jinja",
        "config.json",
        "templates/tool.jinja",
    ]
    assert len(server.log) == 3


def test_a_model_without_such_folders_is_listed_once(server: FaultServer) -> None:
    server.objects = {"model/config.json": Stored.of(b"{}"), "model/original/x": Stored.of(b"")}
    assert [item.name for item in list_with_templates(store_of(server)).objects] == ["config.json"]
    assert len(server.log) == 1


def test_templates_of_a_folder_are_listed_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/rag.jinja").write_text("x")
    (tmp_path / "config.json").write_text("{}")
    listing = list_with_templates(open_store(parse_source(str(tmp_path))))
    assert [item.name for item in listing.objects] == ["config.json", "templates/rag.jinja"]


def test_a_busy_store_is_asked_again_for_all_that_lies_below(server: FaultServer) -> None:
    server.list_script.append(error_answer(503, "SlowDown", retry_after="0"))
    assert len(list_all_below(store_of(server))) == len(MODEL)


def test_more_objects_than_can_be_meant_are_refused(server: FaultServer) -> None:
    with pytest.raises(Unsupported, match="More than 4 objects"):
        list_all_below(store_of(server), most=4)


def test_a_long_listing_tells_how_far_it_is(server: FaultServer) -> None:
    server.objects = {f"model/{number:04d}": Stored.of(b"") for number in range(2_500)}
    told: list[int] = []
    assert len(list_all_below(store_of(server), on_count=told.append)) == 2_500
    assert told == [1_000, 2_000]
