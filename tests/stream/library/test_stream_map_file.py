"""map_file gives what load_file gives, as views of the file itself."""

from pathlib import Path

import numpy as np
import pytest

from headrace import Changed, Unsupported, load_file, map_file
from headrace.store import mapped
from headrace.stream.library.load import TensorTwice
from tests.faults.server import fault_server
from tests.stream.safetensors_files import EVERY_KIND, content, file_of
from tests.stream.streaming import data_of

OF_TORCH = {name: kind for name, kind in EVERY_KIND.items() if not kind.dtype.startswith("F6_")}
LARGE = content("F32", (1024, 64))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    tensors = {"large": LARGE, "small": content("BF16", (3,))}
    files = (file_of(tensors, padding=padding) for padding in range(8))
    # As safetensors writes them: the header ends where every dtype may begin.
    path.write_bytes(next(file for file in files if int.from_bytes(file[:8], "little") % 8 == 0))
    return path


@pytest.mark.parametrize("padding", range(8))
def test_every_kind_of_tensor_is_as_load_file_gives_it(padding: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(OF_TORCH, padding=padding))
    ours, theirs = map_file(path), load_file(path)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)
        assert data_of(tensor) == data_of(theirs[name]) == OF_TORCH[name].data


@pytest.mark.parametrize("padding", range(8))
def test_arrays_are_aligned_wherever_they_lie_in_the_file(padding: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(EVERY_KIND, padding=padding))
    arrays = map_file(path, framework="numpy")
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: kind.data for name, kind in EVERY_KIND.items()
    }
    assert all(array.flags.aligned for array in arrays.values())


def test_a_tensor_is_a_view_of_the_file(file: Path) -> None:
    tensors = map_file(file, framework="numpy")
    assert str(file) in Path("/proc/self/maps").read_text()
    first = tensors["large"][0, 0].tobytes()
    # What only the risk-taker sees: a change of the file in place, on a page that nobody has written to.
    with file.open("r+b") as raw:
        raw.seek(file.read_bytes().index(LARGE.data))
        raw.write(bytes(byte ^ 0xFF for byte in first))
    assert tensors["large"][0, 0].tobytes() != first


def test_what_is_written_to_a_tensor_stays_here(file: Path) -> None:
    before = file.read_bytes()
    tensors = map_file(file)
    tensors["large"].zero_()
    assert not tensors["large"].any()
    assert file.read_bytes() == before


def test_the_last_tensor_takes_the_mapping_with_it(file: Path) -> None:
    tensors = map_file(file)
    kept = tensors.pop("large")
    del tensors
    assert str(file) in Path("/proc/self/maps").read_text()
    assert data_of(kept) == LARGE.data
    del kept
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_a_folder_of_shards_is_mapped(tmp_path: Path) -> None:
    for number in (1, 2):
        shard = file_of({f"t{number}": content("F16", (4, number))})
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(shard)
    assert list(map_file(tmp_path, framework="numpy")) == ["t1", "t2"]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        shard = file_of({"t": content("F16", (4,))})
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(shard)
    with pytest.raises(TensorTwice):
        map_file(tmp_path, framework="numpy")


def test_what_lies_on_a_server_cannot_be_mapped() -> None:
    with fault_server({"model/x.safetensors": file_of({"t": content("U8", (4,))})}) as server:
        with pytest.raises(Unsupported, match="Only local files can be mapped") as caught:
            map_file(f"{server.url}/bucket/model/x.safetensors", framework="numpy")
        assert "load_file" in caught.value.remedy


def test_a_network_file_system_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "file_system_kind", lambda descriptor: 0x6969)
    with pytest.raises(Unsupported, match="NFS"):
        map_file(file, framework="numpy")


def test_a_file_that_is_replaced_after_its_header_was_read_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = mapped.file_system_kind

    def replace_first(descriptor: int) -> int:
        file.write_bytes(file_of({"large": content("F32", (1024, 64), seed=1)}))
        return kind(descriptor)

    monkeypatch.setattr(mapped, "file_system_kind", replace_first)
    with pytest.raises(Changed):
        map_file(file, framework="numpy")


def test_arrays_are_numpys(file: Path) -> None:
    assert isinstance(map_file(file, framework="numpy")["large"], np.ndarray)
