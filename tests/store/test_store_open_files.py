"""A process that may open no more files: a load says so with what helps, and goes on as soon as others are closed."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import load_file
from headrace.source.object_uri import parse_object
from headrace.store.base import open_store, read_range
from headrace.store.errors import TransientError
from headrace.store.http.connect import endpoint_of, open_socket
from tests.faults.opening import only_object, store_of
from tests.faults.server import fault_server
from tests.stream.safetensors_files import content, file_of

pytestmark = pytest.mark.timeout(60)
SAID = "Raise the limit of open files"


@contextmanager
def no_more_files() -> Iterator[None]:
    """Not one, whatever is closed meanwhile; those that are open stay so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_that_cannot_be_opened_may_be_tried_again() -> None:
    endpoint = endpoint_of("http://127.0.0.1:9")
    with (
        no_more_files(),
        pytest.raises(TransientError, match=r"No connection can be opened: too many") as caught,
    ):
        open_socket(endpoint, lambda connection: None)
    assert SAID in caught.value.remedy


def test_a_reader_goes_on_when_there_are_files_again() -> None:
    with fault_server({"model/x.bin": b"abcdef"}) as server:
        item = only_object(store_of(server))
        reader = store_of(server).open_reader()  # of another store, which has no connection to spare yet
        with no_more_files(), pytest.raises(TransientError, match=SAID):
            read_range(reader, item, 0, 6)
        assert read_range(reader, item, 0, 6) == b"abcdef"
        reader.close()


def test_a_file_that_cannot_be_opened_says_what_helps(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"a": content("U8", (4,))}))
    source, name = parse_object(str(path))
    store = open_store(source)
    with no_more_files(), pytest.raises(TransientError, match=SAID):
        store.look_up(name, 100)
    assert load_file(path, framework="numpy").keys() == {"a"}
