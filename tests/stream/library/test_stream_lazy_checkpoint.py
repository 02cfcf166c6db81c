"""open_checkpoint: names and shapes from the headers alone, and of a tensor just the bytes that an index names."""

import json
import math
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from headrace import Changed, HeadraceError, open_checkpoint
from headrace.source.files import INDEX_NAME
from headrace.stream.library.lazy_checkpoint import CheckpointClosed, LazyCheckpoint
from headrace.stream.library.load import TensorTwice
from headrace.stream.library.memory_room import NotEnoughMemory
from headrace.stream.library.tensors import BadFramework
from headrace.stream.select import BadSlice
from tests.faults import server as faults
from tests.faults.server import Asked, FaultServer, Stored, fault_server
from tests.profiles import examples
from tests.stream.safetensors_files import EVERY_KIND, Content, content, file_of
from tests.stream.streaming import FOLDER, credentials_of, data_of, put

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


def matrix(rows: int, columns: int) -> tuple[Content, Any]:
    values = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    return Content("I32", (rows, columns), values.tobytes()), values


def opened(server: FaultServer, tensors: dict[str, Content], **options: Any) -> LazyCheckpoint:
    path = put(server, "model.safetensors", tensors)
    return open_checkpoint(path, s3_credentials=credentials_of(server), **options)


def test_names_shapes_dtypes_sizes_and_objects_come_from_the_headers(server: FaultServer) -> None:
    with opened(server, EVERY_KIND) as checkpoint:
        assert list(checkpoint) == list(EVERY_KIND)
        assert len(checkpoint) == len(EVERY_KIND)
        assert "scalar" in checkpoint
        assert "missing" not in checkpoint
        assert [(e.name, e.dtype, e.shape, e.size_bytes) for e in checkpoint.values()] == [
            (name, c.dtype, c.shape, len(c.data)) for name, c in EVERY_KIND.items()
        ]
        entry = checkpoint["of.BF16"]
        assert entry.object == f"{FOLDER}/model.safetensors"
        assert repr(entry) == f"LazyTensor('of.BF16', BF16, shape=[3, 8], object='{entry.object}')"
        with pytest.raises(KeyError):
            checkpoint["missing"]
    assert len(server.ranges) == 1


def test_a_folder_is_opened_as_its_index_says(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(file_of({"b": content("U8", (3,)), "a": content("U8", (2,))}))
    (tmp_path / "two.safetensors").write_bytes(file_of({"c": content("F32", (2, 2))}))
    (tmp_path / "stale.safetensors").write_bytes(b"not read")
    weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    with open_checkpoint(tmp_path) as checkpoint:
        objects = {name: entry.object for name, entry in checkpoint.items()}
        assert objects == {name: str(tmp_path / weight_map[name]) for name in ("b", "a", "c")}
        assert data_of(checkpoint["c"][1]) == content("F32", (2, 2)).data[8:]


def test_a_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        (tmp_path / name).write_bytes(file_of({"a": content("U8", (2,))}))
    with pytest.raises(TensorTwice, match="Tensor a is in"):
        open_checkpoint(tmp_path)


def test_rows_are_read_and_nothing_else(server: FaultServer) -> None:
    stored, values = matrix(1000, 100)
    with opened(server, {"before": content("U8", (300_000,)), "w": stored}) as checkpoint:
        rows = checkpoint["w"][200:300]
    assert isinstance(rows, torch.Tensor)
    assert np.array_equal(rows.numpy(), values[200:300])
    first, last = server.ranges[-1]
    assert last - first + 1 == 100 * 100 * 4


def test_columns_are_cut_from_the_rows_that_hold_them(server: FaultServer) -> None:
    stored, values = matrix(1000, 100)
    with opened(server, {"w": stored}, framework="numpy") as checkpoint:
        part = checkpoint["w"][-500:-490, 64:72]
    assert np.array_equal(part, values[-500:-490, 64:72])
    assert part.base is None or part.base.nbytes < 10 * 8 * 4 + 64  # the rows do not live on behind it
    assert sum(last - first + 1 for first, last in server.ranges[1:]) == 10 * 400


def test_a_box_that_no_plan_reads_is_cut_from_rows_that_do_not_live_on_behind_it(tmp_path: Path) -> None:
    stored = content("I16", (6, 50, 40))
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": stored}))
    whole = np.frombuffer(stored.data, np.int16).reshape(6, 50, 40)
    with open_checkpoint(path, framework="numpy") as checkpoint:
        part = checkpoint["w"][1:3, 4:6, 7:9]
        assert np.array_equal(part, whole[1:3, 4:6, 7:9])
        assert part.base is None
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint["w"][1:3, 4:6, 7:9]
        assert np.array_equal(tensor.numpy(), part)
        assert tensor.untyped_storage().nbytes() == 16


def test_one_row_of_one_matrix_of_many_is_one_small_read(server: FaultServer) -> None:
    experts = content("BF16", (64, 32, 128))
    with opened(server, {"experts": experts}, framework="numpy") as checkpoint:
        row = checkpoint["experts"][40, 3:5]
    assert row.shape == (2, 128)
    at = (40 * 32 + 3) * 256
    assert row.tobytes() == experts.data[at : at + 512]
    first, last = server.ranges[-1]
    assert last - first + 1 == 512


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Content, Any]]]:
    """Tensors of many shapes, each with its entry of an opened checkpoint."""
    shapes = [(), (7,), (4, 6), (3, 4, 5), (2, 3, 4, 2), (0, 3), (3, 0, 2), (1, 1, 5)]
    tensors = {str(shape): content("I16", shape) for shape in shapes}
    path = tmp_path_factory.mktemp("lazy") / "x.safetensors"
    path.write_bytes(file_of(tensors, padding=1))
    with open_checkpoint(path, framework="numpy") as checkpoint:
        yield {name: (tensor, checkpoint[name]) for name, tensor in tensors.items()}


@settings(max_examples=examples(250))
@given(st.data())
def test_any_index_gives_what_it_gives_of_the_loaded_array(
    every_kind: dict[str, tuple[Content, Any]], data: st.DataObject
) -> None:
    stored, entry = every_kind[data.draw(st.sampled_from(sorted(every_kind)))]
    whole = np.frombuffer(stored.data, np.int16).reshape(stored.shape)
    index = data.draw(basic_indices(stored.shape, allow_newaxis=False))
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, slice) and part.step not in (None, 1) for part in parts):
        with pytest.raises(IndexError, match="step"):
            _ = entry[index]
        return
    found, expected = entry[index], np.asarray(whole[index])
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", sorted({c.dtype for c in EVERY_KIND.values()}))
def test_every_dtype_is_read_whole_and_by_rows(tmp_path: Path, dtype: str) -> None:
    stored = content(dtype, (4, 8))
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": stored}))
    row = len(stored.data) // 4
    with open_checkpoint(path, framework="numpy") as checkpoint:
        assert checkpoint["w"][...].tobytes() == stored.data
        assert checkpoint["w"][1:3].tobytes() == stored.data[row : 3 * row]
        assert checkpoint["w"][-1].tobytes() == stored.data[3 * row :]
    with open_checkpoint(path) as checkpoint:
        if dtype.startswith("F6_"):
            with pytest.raises(BadFramework, match=f"Tensor w has the dtype {dtype}"):
                checkpoint["w"][1]
        else:
            assert data_of(checkpoint["w"][1:3]) == stored.data[row : 3 * row]


def test_half_bytes_are_cut_at_whole_bytes_only(tmp_path: Path) -> None:
    stored = content("F4", (2, 4, 6))
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": stored, "odd": content("F4", (2, 2, 3))}))
    with open_checkpoint(path, framework="numpy") as checkpoint:
        assert checkpoint["w"][1, 2, 2:4].tobytes() == stored.data[19:20]
        assert checkpoint["odd"][1].shape == (3,)
        with pytest.raises(BadSlice, match="whole byte"):
            checkpoint["w"][1, 2, 1:4]
        with pytest.raises(BadSlice, match="whole byte"):
            checkpoint["odd"][0, 1]


def test_much_is_read_over_several_connections(server: FaultServer) -> None:
    stored = content("U8", (20 << 20,))
    with opened(server, {"w": stored}, framework="numpy") as checkpoint:
        found = checkpoint["w"][1:]
    assert found.tobytes() == stored.data[1:]
    assert len(server.ranges) > 2


def test_a_connection_is_kept_from_one_read_to_the_next(server: FaultServer) -> None:
    stored, values = matrix(100, 10)
    with opened(server, {"w": stored}) as checkpoint:
        for number in range(5):
            assert checkpoint["w"][number, 3].item() == values[number, 3]
    assert len({asked.connection for asked in server.log[1:]}) == 1


def test_threads_read_at_the_same_time(server: FaultServer) -> None:
    stored, values = matrix(400, 10)
    with opened(server, {"w": stored}, framework="numpy") as checkpoint:
        found: dict[int, Any] = {}

        def read(start: int) -> None:
            for row in range(start, start + 50):
                found[row] = checkpoint["w"][row]

        threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 400, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(np.array_equal(found[row], values[row]) for row in range(400))
    assert len({asked.connection for asked in server.log}) <= 1 + 8


def test_a_read_goes_on_through_faults_that_pass(server: FaultServer) -> None:
    stored, values = matrix(300, 100)
    with opened(server, {"w": stored}) as checkpoint:
        server.play(faults.error(503, Retry_After="0"), faults.short_body(70_000), faults.reset_body(3))
        assert np.array_equal(checkpoint["w"][:].numpy(), values)


def test_an_object_that_was_replaced_is_an_error_and_no_mixture(server: FaultServer) -> None:
    stored, _ = matrix(30, 10)
    with opened(server, {"w": stored}) as checkpoint:
        checkpoint["w"][3]
        server.objects["model/model.safetensors"] = Stored.of(file_of({"w": content("I32", (30, 10))}))
        with pytest.raises(Changed, match=r"s3://bucket/model/model\.safetensors"):
            checkpoint["w"][4]


def test_after_the_end_nothing_is_read(server: FaultServer) -> None:
    checkpoint = opened(server, {"w": content("I32", (30, 10)), "large": content("U8", (9 << 20,))})
    entry = checkpoint["w"]
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(CheckpointClosed):
        entry[3]
    with pytest.raises(CheckpointClosed):
        checkpoint["large"][:]
    assert entry.shape == (30, 10)


@pytest.mark.parametrize("rows", [slice(0, 10), slice(None)])  # over one connection, and over several
def test_closing_ends_a_read_in_another_thread(server: FaultServer, rows: slice) -> None:
    stored = content("U8", (10 << 20,))
    checkpoint = opened(server, {"w": stored})
    server.play(*[faults.stall(3)] * 9)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            checkpoint["w"][rows]
        except HeadraceError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    server.stalled.get()
    checkpoint.close()
    thread.join()
    assert len(raised) == 1


def test_closing_ends_a_wait_for_the_next_try(server: FaultServer) -> None:
    checkpoint = opened(server, {"w": content("I32", (30, 10))})
    asked_for = threading.Event()

    def refuse(asked: Asked) -> bytes:
        asked_for.set()
        return faults.error_answer(503, "SlowDown", Retry_After="60")

    server.refuse = refuse
    raised: list[BaseException] = []

    def read() -> None:
        try:
            checkpoint["w"][3]
        except CheckpointClosed as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    asked_for.wait()
    checkpoint.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_an_entry_is_not_iterated_row_by_row(server: FaultServer) -> None:
    with opened(server, {"w": content("I32", (30, 10))}) as checkpoint, pytest.raises(TypeError):
        list(checkpoint["w"])


def test_empty_parts_need_no_read(server: FaultServer) -> None:
    with opened(server, {"w": content("I32", (30, 10)), "e": content("F32", (0, 3))}) as checkpoint:
        assert checkpoint["w"][5:5].shape == (0, 10)
        assert checkpoint["w"][:, 3:3].shape == (30, 0)
        assert checkpoint["e"][:].shape == (0, 3)
    assert len(server.ranges) == 1


def test_a_part_is_the_callers_to_keep_and_to_write_to(tmp_path: Path) -> None:
    stored = content("F32", (8, 4))
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": stored}))
    with open_checkpoint(path) as checkpoint:
        first, second = checkpoint["w"][0:2], checkpoint["w"][0:2]
    first.zero_()
    assert data_of(second) == stored.data[:32]
    assert first.data_ptr() % 64 == 0
    assert first.untyped_storage().nbytes() == math.prod((2, 4)) * 4


def test_entries_are_themselves_and_can_be_kept_in_a_set(server: FaultServer) -> None:
    with opened(server, {"a": matrix(2, 2)[0], "b": matrix(2, 2)[0]}) as checkpoint:
        assert len({checkpoint["a"], checkpoint["a"], checkpoint["b"]}) == 2
        assert checkpoint["a"] != checkpoint["b"]


@pytest.mark.parametrize("framework", ["numpy", "pt"])
def test_numpy_reads_an_entry_as_an_array(server: FaultServer, framework: Any) -> None:
    stored, values = matrix(4, 3)
    with opened(server, {"w": stored}, framework=framework) as checkpoint:
        assert np.array_equal(np.asarray(checkpoint["w"]), values)
        assert np.asarray(checkpoint["w"], np.float64).dtype == np.float64


def test_a_checkpoint_shows_where_it_is_and_cannot_be_pickled(server: FaultServer) -> None:
    with opened(server, {"w": matrix(4, 3)[0]}) as checkpoint:
        assert repr(checkpoint) == f"LazyCheckpoint('{FOLDER}', 1 tensors)"
        for kept in (checkpoint, checkpoint["w"]):
            with pytest.raises(TypeError, match="open it in each process"):
                pickle.dumps(kept)
    assert repr(checkpoint) == f"LazyCheckpoint('{FOLDER}', 1 tensors, closed)"


def test_a_tensor_that_the_machine_has_no_memory_for_is_refused_and_its_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    size = 1 << 40
    header = b'{"w":{"dtype":"U8","shape":[1048576,1048576],"data_offsets":[0,%d]}}' % size
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)  # of which nothing takes room on the disk
    with open_checkpoint(path, framework="numpy") as checkpoint:
        with pytest.raises(NotEnoughMemory, match=r"w: 1,099,511,627,776 bytes .* Read fewer rows at once"):
            checkpoint["w"][...]
        assert checkpoint["w"][-1].shape == (1048576,)
