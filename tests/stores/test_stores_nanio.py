"""A second S3 server, of another make: what is pushed there is read back, and who may not is told."""

from pathlib import Path

import pytest
from safetensors import safe_open

import headrace
from headrace.cli.main import main
from headrace.source.uri import parse_source
from headrace.store.base import open_store, read_whole
from headrace.store.errors import BadSignature, Changed, NotFound
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from tests.stores.nanio import nanio_place
from tests.stores.place import Place

__all__ = ["nanio_place"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def uri(nanio_place: Place, tiny_model: Path) -> str:
    uri = f"{nanio_place.uri}/tiny"
    with nanio_place.entered():
        assert main(["push", str(tiny_model), uri, "--create-bucket", "--quiet"]) == 0
    return uri


def test_the_bytes_that_stream_are_those_of_the_files(uri: str, nanio_place: Place, tiny_model: Path) -> None:
    with nanio_place.entered():
        tensors = headrace.load_file(uri)
    for path in sorted(tiny_model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                assert tensors[name].equal(file.get_tensor(name)), name


def test_a_second_push_sends_nothing(uri: str, nanio_place: Place, tiny_model: Path) -> None:
    with nanio_place.entered():
        assert upload_files(find_files(tiny_model).files, parse_source(uri)).uploaded == ()


def test_a_wrong_secret_is_told(uri: str, nanio_place: Place) -> None:
    with nanio_place.entered() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
        with pytest.raises(BadSignature):
            open_store(parse_source(uri)).list()


def test_what_is_not_there_is_told(uri: str, nanio_place: Place) -> None:
    with nanio_place.entered():
        with pytest.raises(NotFound, match="Nothing lies under this prefix"):
            open_store(parse_source(f"{uri}-not")).list()
        with pytest.raises(NotFound, match="There is no bucket nowhere"):
            open_store(parse_source("s3://nowhere/tiny")).list()


def test_an_object_that_is_replaced_is_noticed_though_the_server_knows_no_conditions(
    nanio_place: Place, uri: str, tmp_path: Path
) -> None:
    place = parse_source(f"{nanio_place.uri}/changing")
    with nanio_place.entered():
        (tmp_path / "config.json").write_text("first")
        upload_files(find_files(tmp_path).files, place)
        store = open_store(place)
        (item,) = store.list().objects
        (tmp_path / "config.json").write_text("again")
        upload_files(find_files(tmp_path).files, place)
        with pytest.raises(Changed):
            read_whole(store.open_reader(), item)
