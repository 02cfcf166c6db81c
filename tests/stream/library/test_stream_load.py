"""load_file gives what safetensors' own load_file gives, wherever the file is."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import BadHeader, NotFound, load_file, map_file, open_checkpoint
from headrace.demo.store import SeaweedStore
from headrace.source.files import INDEX_NAME, BadModelFiles
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from headrace.stream.library.credentials import S3Credentials
from headrace.stream.library.load import TensorTwice
from headrace.stream.library.memory_room import NotEnoughMemory, Room
from headrace.stream.library.tensors import BadFramework
from tests.faults import server as faults
from tests.faults.server import FaultServer, Stored, fault_server
from tests.profiles import examples
from tests.stream.safetensors_files import EVERY_KIND, Content, content, file_of
from tests.stream.streaming import FOLDER, credentials_of, data_of, put

pytestmark = pytest.mark.timeout(120)
# What the reference can load too. It has no format of six bits; numpy has no small floats without ml_dtypes.
OF_TORCH = {name: c for name, c in EVERY_KIND.items() if not c.dtype.startswith("F6_")}
OF_NUMPY = {name: c for name, c in OF_TORCH.items() if c.dtype != "F4" and not c.dtype.startswith("F8_")}


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Bit for bit: a NaN is itself."""
    return (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) and data_of(ours) == data_of(theirs)


@pytest.mark.parametrize("padding", range(4))
def test_a_file_is_loaded_as_safetensors_loads_it_for_torch(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(OF_TORCH, padding=padding, metadata={"format": "pt"}))
    ours, theirs = load_file(path), safetensors.torch.load_file(path)
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not same(ours[name], theirs[name])] == []


@pytest.mark.parametrize("padding", range(4))
def test_a_file_is_loaded_as_safetensors_loads_it_for_numpy(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(OF_NUMPY, padding=padding))
    ours, theirs = load_file(path, framework="numpy"), safetensors.numpy.load_file(path)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].shape, ours[name].tobytes()) == (array.shape, array.tobytes())
        # The reference gives bfloat16 as ml_dtypes' too, if that is installed, else as bytes.
        assert ours[name].dtype == array.dtype or OF_NUMPY[name].dtype == "BF16"


def test_every_dtype_has_its_numpy_type(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(EVERY_KIND))
    found = load_file(path, framework="numpy")
    named = {name.removeprefix("of."): a.dtype.name for name, a in found.items() if name.startswith("of.")}
    assert named == {
        "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz", "I64": "int64", "I32": "int32", "I16": "int16",
        "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
        "C64": "complex64", "F4": "uint8", "F6_E2M3": "uint8", "F6_E3M2": "uint8",
    }  # fmt: skip
    assert found["of.F4"].shape == (3, 4)  # two elements a byte
    assert {name: array.tobytes() for name, array in found.items()} == {
        n: c.data for n, c in EVERY_KIND.items()
    }


def test_rows_of_half_bytes_come_as_one_row_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    odd = content("F4", (2, 3))
    path.write_bytes(file_of({"odd": odd}))
    found = load_file(path, framework="numpy")["odd"]
    assert (found.shape, found.tobytes()) == ((3,), odd.data)
    assert load_file(path)["odd"].shape == (3,)


@settings(max_examples=examples(40, 1000))
@given(
    st.dictionaries(
        st.text(max_size=6).filter("__metadata__".__ne__),
        st.tuples(
            st.sampled_from(sorted({c.dtype for c in OF_TORCH.values()} - {"F4"})),
            st.lists(st.integers(0, 5), max_size=4).map(tuple),
        ),
        max_size=12,
    ),
    st.integers(0, 8),
    st.sampled_from([4096, 8 << 20]),
)
def test_any_legal_file_is_loaded_as_the_reference_loads_it(
    tmp_path_factory: pytest.TempPathFactory,
    described: dict[str, tuple[str, tuple[int, ...]]],
    padding: int,
    chunk_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("legal") / "x.safetensors"
    path.write_bytes(file_of({n: content(*d, seed=9) for n, d in described.items()}, padding=padding))
    ours, theirs = load_file(path, chunk_bytes=chunk_bytes), safetensors.torch.load_file(path)
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not same(ours[name], theirs[name])] == []


def test_a_local_file_is_one_object_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "b2c0f1"  # as a hub's cache names it
    path.write_bytes(file_of({"a": content("U8", (4,))}))
    assert load_file(path).keys() == load_file(str(path)).keys() == {"a"}


def test_a_question_mark_in_a_key_or_a_files_name_is_a_letter(tmp_path: Path, server: FaultServer) -> None:
    name = "a?b#c.safetensors"
    path = tmp_path / name
    path.write_bytes(file_of({"a": content("U8", (4,))}))
    assert load_file(path).keys() == {"a"}
    uri = put(server, name, {"b": content("U8", (4,))})
    assert load_file(uri, s3_credentials=credentials_of(server)).keys() == {"b"}


def test_the_order_is_that_of_the_file_or_of_the_names(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(EVERY_KIND))
    assert list(load_file(path, framework="numpy")) == list(EVERY_KIND)
    assert list(load_file(path, names=["scalar", "odd"])) == ["scalar", "odd"]


def test_another_device_is_given_what_was_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(OF_TORCH))
    found = load_file(path, "meta")  # torch's device without memory: what can be had everywhere
    assert {tensor.device.type for tensor in found.values()} == {"meta"}
    assert found["of.BF16"].shape == (3, 8)
    assert load_file(path, torch.device("meta"), memory_limit=0).keys() == OF_TORCH.keys()


def split(folder: Path, parts: list[dict[str, Content]], *, index: bool = True) -> None:
    """A model's folder of several shards."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        (folder / name).write_bytes(file_of(part))
        weight_map.update(dict.fromkeys(part, name))
    if index:
        (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def split_in(server: FaultServer, parts: list[dict[str, Content]]) -> None:
    """The same in a store."""
    weight_map = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        put(server, name, part)
        weight_map.update(dict.fromkeys(part, name))
    server.objects[f"model/{INDEX_NAME}"] = Stored.of(json.dumps({"weight_map": weight_map}).encode())


TWO_PARTS = [{"a": content("BF16", (40, 3)), "b": content("F32", (7,))}, {"c": content("I8", (1000,))}]
ALL = {name: c.data for part in TWO_PARTS for name, c in part.items()}


@pytest.mark.parametrize("index", [True, False])
def test_a_folder_is_loaded_shard_by_shard(tmp_path: Path, index: bool) -> None:
    split(tmp_path, TWO_PARTS, index=index)
    assert {name: data_of(tensor) for name, tensor in load_file(tmp_path).items()} == ALL


def test_what_the_index_does_not_name_is_not_loaded(tmp_path: Path) -> None:
    split(tmp_path, TWO_PARTS)
    (tmp_path / "model-extra.safetensors").write_bytes(file_of({"extra": content("U8", (1,))}))
    assert load_file(tmp_path).keys() == ALL.keys()


def test_an_index_that_names_a_tensor_which_its_shard_lacks_is_refused(tmp_path: Path) -> None:
    split(tmp_path, TWO_PARTS)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    index["weight_map"]["lost"] = index["weight_map"]["a"]
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(BadModelFiles, match=r"names 1 tensors that are not in their shard: lost"):
        load_file(tmp_path)


def test_two_shards_with_the_same_name_are_refused(tmp_path: Path) -> None:
    split(tmp_path, [*TWO_PARTS, {"b": content("F32", (7,), 1)}], index=False)
    with pytest.raises(
        TensorTwice, match=r"Tensor b is in model-00001-of-00003.* and in model-00003-of-00003"
    ):
        load_file(tmp_path)


def test_a_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadModelFiles, match=r"There is: pytorch_model\.bin"):
        load_file(tmp_path)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


def test_a_folder_in_a_store_is_listed_once_and_each_byte_is_read_once(server: FaultServer) -> None:
    large = [{"a": content("U8", (700_000,))}, {"b": content("U8", (500_000,), 1)}]
    for number, part in enumerate(large, start=1):
        put(server, f"model-0000{number}-of-00002.safetensors", part)
    found = load_file(FOLDER, s3_credentials=credentials_of(server))
    assert {name: data_of(t) for name, t in found.items()} == {
        "a": large[0]["a"].data,
        "b": large[1]["b"].data,
    }
    assert len([asked for asked in server.log if asked.range is None]) == 1
    read = sum(last - first + 1 for first, last in server.ranges)
    assert read == 1_200_000 + sum(min(256 << 10, len(server.objects[key].data)) for key in server.objects)


def test_a_load_goes_on_through_faults_that_pass(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {"a": content("U8", (300_000,)), "b": content("F32", (2,))})
    server.play(
        faults.error(503), faults.honest, faults.reset_body(1000), faults.short_body(200), faults.error(500)
    )
    found = load_file(path, s3_credentials=credentials_of(server))
    assert data_of(found["a"]) == content("U8", (300_000,)).data


def test_a_folder_that_is_refused_leaves_no_thread_and_no_connection(server: FaultServer) -> None:
    split_in(server, TWO_PARTS)
    server.objects["model/model-00002-of-00002.safetensors"] = Stored.of(b"\xff" * 100)
    before = set(threading.enumerate())
    with pytest.raises(BadHeader, match="model-00002-of-00002"):
        load_file(FOLDER, s3_credentials=credentials_of(server))
    ours = [t for t in set(threading.enumerate()) - before if t.name.startswith("small-reads")]
    for thread in ours:
        thread.join(20)
    assert [thread.name for thread in ours if thread.is_alive()] == []


def test_a_plain_web_server_gives_objects_and_folders(server: FaultServer) -> None:
    split_in(server, TWO_PARTS)
    assert {n: data_of(t) for n, t in load_file(f"{server.url}/bucket/model/").items()} == ALL
    one = load_file(f"{server.url}/bucket/model/model-00002-of-00002.safetensors?signature=x")
    assert {n: data_of(t) for n, t in one.items()} == {"c": ALL["c"]}
    assert all("authorization" not in asked.headers for asked in server.log)


def test_an_error_names_object_and_cause_and_no_secret(server: FaultServer) -> None:
    with pytest.raises(NotFound, match=r"s3://bucket/model/gone\.safetensors") as caught:
        load_file(f"{FOLDER}/gone.safetensors", s3_credentials=credentials_of(server))
    assert str(credentials_of(server).secret_access_key) not in str(caught.value)
    server.objects["model/cut.safetensors"] = Stored.of(file_of(TWO_PARTS[0])[:-1])
    with pytest.raises(BadHeader, match="cut off"):
        load_file(f"{FOLDER}/cut.safetensors", s3_credentials=credentials_of(server))


def test_a_load_that_does_not_fit_is_refused_with_the_sum_before_it_starts(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room((64 << 20) + 999, "the control group's memory limit")
    monkeypatch.setattr("headrace.stream.library.memory_demand.memory_room", lambda: room)
    path = put(server, "model.safetensors", {"a": content("U8", (600,)), "b": content("U8", (400,))})
    said = (
        r"2 tensors: 1,000 bytes \+ 67,108,864 to work with = 67,109,864, but the control group's memory limit "
        r"leaves 67,109,863\."
    )
    with pytest.raises(NotEnoughMemory, match=said):
        load_file(path, s3_credentials=credentials_of(server))
    with pytest.raises(NotEnoughMemory):  # what is all kept does not become less by a limit
        load_file(path, s3_credentials=credentials_of(server), memory_limit=0)
    assert len(server.ranges) == 2  # the headers
    assert load_file(path, s3_credentials=credentials_of(server), names=["a"]).keys() == {"a"}
    with headrace.SafetensorsStreamer() as streamer:
        with pytest.raises(NotEnoughMemory, match="2 tensors"):
            streamer.stream_file(path, credentials_of(server))
        streamer.stream_file(path, credentials_of(server), memory_limit=600)
        assert len(list(streamer.get_tensors())) == 2
        streamer.stream_file(path, credentials_of(server), "meta", memory_limit=600)
        assert len(list(streamer.get_tensors())) == 2


def test_what_goes_on_to_another_device_needs_not_fit_here(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room((64 << 20) + 10_000, "the machine's available memory")
    monkeypatch.setattr("headrace.stream.library.memory_demand.memory_room", lambda: room)
    path = put(server, "model.safetensors", {name: content("U8", (2_000,)) for name in "abcdefgh"})
    with pytest.raises(NotEnoughMemory):
        load_file(path, s3_credentials=credentials_of(server))
    assert len(load_file(path, "meta", s3_credentials=credentials_of(server))) == 8
    monkeypatch.setattr(
        "headrace.stream.library.memory_demand.memory_room", lambda: Room(64 << 20, "the test")
    )
    with pytest.raises(NotEnoughMemory, match="the test leaves"):  # not even one of them
        load_file(path, "meta", s3_credentials=credentials_of(server))


def test_torch_is_needed_by_name_only(tmp_path: Path) -> None:
    """A process in which torch cannot be imported loads numpy arrays, and is told how where it asks for tensors."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(EVERY_KIND))
    program = f"""
import sys

class WithoutTorch:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [WithoutTorch(finder) for finder in sys.meta_path]
import headrace
assert not {{"numpy", "msgspec", "typing"}} & set(sys.modules)
arrays = headrace.load_file({str(path)!r}, framework="numpy")
assert arrays["of.BF16"].dtype.name == "bfloat16"
with headrace.SafetensorsStreamer() as streamer:
    streamer.stream_file({str(path)!r}, framework="numpy")
    assert dict(streamer.get_tensors()).keys() == arrays.keys()
with headrace.open_checkpoint({str(path)!r}, framework="numpy") as checkpoint:
    assert (checkpoint["of.I16"][1] == arrays["of.I16"][1]).all()
try:
    headrace.load_file({str(path)!r})
except headrace.HeadraceError as error:
    print(error)
assert "torch" not in sys.modules
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.stderr == ""
    assert ended.stdout.startswith("torch is not installed. Ask for numpy arrays")


def test_the_package_has_the_names_of_the_library_and_no_others() -> None:
    assert {name for name in headrace.__all__ if getattr(headrace, name) is None} == set()
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'load_files'"):
        _ = headrace.load_files  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def real_store(seaweed: SeaweedStore, tmp_path_factory: pytest.TempPathFactory) -> SeaweedStore:
    """A model of two shards, and a file of every kind of tensor, in s3://library."""
    folder = tmp_path_factory.mktemp("library")
    split(folder, TWO_PARTS)
    (folder / "every kind.safetensors").write_bytes(file_of(EVERY_KIND, padding=1))
    settings_ = resolve_s3_settings(seaweed.environment())
    upload_files(find_files(folder).files, parse_source("s3://library/model"), settings_, create_bucket=True)
    return seaweed


def credentials(store: SeaweedStore) -> S3Credentials:
    found = store.environment()
    return S3Credentials(
        found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"], endpoint=found["AWS_ENDPOINT_URL"]
    )


def test_a_real_store_gives_the_same_file_and_folder(real_store: SeaweedStore) -> None:
    found = load_file("s3://library/model", s3_credentials=credentials(real_store))
    assert {name: data_of(tensor) for name, tensor in found.items()} == ALL
    one = load_file(
        "s3://library/model/every kind.safetensors",
        s3_credentials=credentials(real_store),
        framework="numpy",
        chunk_bytes=4096,
    )
    assert {name: array.tobytes() for name, array in one.items()} == {
        n: c.data for n, c in EVERY_KIND.items()
    }


def test_a_real_model_is_loaded_as_safetensors_loads_it(
    seaweed: SeaweedStore, smollm2_uri: str, smollm2_folder: Path
) -> None:
    names = ["model.norm.weight", "model.layers.3.mlp.up_proj.weight", "model.embed_tokens.weight"]
    ours = load_file(smollm2_uri, s3_credentials=credentials(seaweed), names=names)
    with safetensors.safe_open(smollm2_folder / "model.safetensors", "pt") as theirs:  # type: ignore[no-untyped-call]
        assert [name for name in names if not torch.equal(ours[name], theirs.get_tensor(name))] == []


def test_numpys_arrays_may_be_computed_with(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path.write_bytes(file_of({"w": Content("F32", (2, 3), values.tobytes())}))
    found = load_file(path, framework="numpy")["w"]
    found += 1
    assert np.array_equal(found @ np.ones(3, np.float32), [6, 15])


def test_a_form_that_is_no_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({}))
    with pytest.raises(BadFramework):
        load_file(path, framework="jax")  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F4"])
def test_more_dimensions_than_numpy_has_are_an_error_for_its_arrays_alone(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.safetensors"
    deep = content(dtype, (2, *[1] * 99, 2))
    path.write_bytes(file_of({"w": deep, "v": content("U8", (1,) * 32)}))
    said = "Tensor w has 101 dimensions, more than numpy's arrays have"
    with pytest.raises(BadFramework, match=said):
        load_file(path, framework="numpy")
    with pytest.raises(BadFramework, match=said):
        map_file(path, framework="numpy")
    with open_checkpoint(path, framework="numpy") as checkpoint, pytest.raises(BadFramework, match=said):
        checkpoint["w"][0]
    assert load_file(path, framework="numpy", names=["v"])["v"].ndim == 32
    assert data_of(load_file(path)["w"]) == deep.data
