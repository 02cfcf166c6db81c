"""What is easily mistaken among a load's arguments is refused by name, or understood, and never taken for something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import SafetensorsStreamer, TensorParallel, load_file, open_checkpoint
from headrace.stream.library.arguments import device_text, path_text, path_texts, texts
from headrace.stream.library.tensors import BadFramework
from headrace.stream.select import BadSlice
from headrace.stream.variables import BadSetting, check_least, check_positive
from tests.stream.safetensors_files import content, file_of

SMALL = {"a": content("U8", (4,)), "b": content("U8", (4,), 1), "c": content("U8", (4,), 2)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(SMALL))
    return path


@pytest.mark.parametrize("given", ["s3://bucket/x.safetensors", Path("/x.safetensors"), b"/x.safetensors"])
def test_one_path_is_not_taken_for_a_list_of_letters(given: Any) -> None:
    with pytest.raises(BadSetting, match=r"Several paths are meant, .*x\.safetensors.*stream_file"):
        path_texts(given)
    with SafetensorsStreamer() as streamer, pytest.raises(BadSetting, match="Several paths"):
        streamer.stream_files(given)


def test_paths_may_come_from_any_iterable(path: Path) -> None:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(each for each in (path, str(path)))
        assert [name for name, _ in streamer.get_tensors()] == ["a", "b", "c"] * 2


@pytest.mark.parametrize("given", [None, 7, b"/x.safetensors"])
@pytest.mark.parametrize("use", [path_text, load_file, open_checkpoint])
def test_what_is_no_path_is_refused_as_it_was_written(given: Any, use: Callable[[Any], object]) -> None:
    with pytest.raises(BadSetting, match="A path or URI is meant, and "):
        use(given)


def test_one_name_is_not_taken_for_a_list_of_letters(path: Path) -> None:
    with pytest.raises(BadSetting, match=r"names is one text, 'abc'\. Put it into a list"):
        load_file(path, names="abc")
    with pytest.raises(BadSetting, match="names holds 1, which is no text"):
        texts(["a", 1], "names")  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "cpu"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        (torch.device("cpu", 0), "cpu"),
        ("cuda", "cuda"),
        (0, "cuda:0"),
        (3, "cuda:3"),
        (torch.device("meta"), "meta"),
    ],
)
def test_a_device_is_named_as_torch_names_it(given: Any, text: str) -> None:
    assert device_text(given) == text


@pytest.mark.parametrize("device", ["nonsense", "", "cpu:x", "cuda:9999", 9999, 3.5])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(path: Path, device: Any) -> None:
    with SafetensorsStreamer() as streamer:
        with pytest.raises(BadFramework, match="Tensors cannot be on device "):
            streamer.stream_file(path, device=device)
        assert streamer.progress() is None


def test_numpys_numbers_are_numbers() -> None:
    least, positive = check_least(np.int64(48), 1, "x"), check_positive(np.float32(1.5), "x")
    assert (least, type(least)) == (48, int)
    assert (positive, type(positive)) == (1.5, float)
    for value in (True, 2.0, "2", np.float64(2), np.bool_(True)):
        with pytest.raises(BadSetting, match=r"x is .*Set it to a whole number of at least 1"):
            check_least(value, 1, "x")  # type: ignore[arg-type]


def test_no_end_is_no_limit(path: Path) -> None:
    assert check_positive(float("inf"), "x") is None
    assert load_file(path, rate_limit_mb_s=float("inf"), deadline_s=float("inf")).keys() == SMALL.keys()


@pytest.mark.parametrize(("rank", "size"), [("0", 2), (0, "2"), (0.0, 2), (True, 2), (None, 2)])
def test_a_rank_that_is_no_whole_number_is_refused(path: Path, rank: Any, size: Any) -> None:
    with pytest.raises(BadSlice, match=r"whole numbers.*int\(os\.environ\["):
        load_file(path, tensor_parallel=TensorParallel(rank, size, {"a": 0}))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda path, **more: load_file(path, **more), "load_file"),
        (lambda path, **more: SafetensorsStreamer().stream_file(path, **more), "stream_file"),
        (lambda path, **more: SafetensorsStreamer().stream_files([path], **more), "stream_files"),
        (lambda path, **more: open_checkpoint(path, **more), "open_checkpoint"),
    ],
)
def test_a_keyword_that_is_none_is_told_of_the_call_that_was_made(
    call: Callable[..., Any], name: str
) -> None:
    # The place cannot be opened: nothing is asked there first.
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'typo'"):
        call("s3://nowhere/x.safetensors", typo=1)


def test_a_keyword_that_is_nearly_one_is_told(path: Path) -> None:
    more: Any = {"concurency": 4}
    with pytest.raises(TypeError, match="Did you mean 'concurrency'"):
        load_file(path, **more)


@pytest.mark.parametrize("given", [5, None, object()])
def test_what_is_no_list_is_refused_as_it_was_written(given: Any) -> None:
    with pytest.raises(BadSetting, match=r"names is .*, which is no list of texts"):
        texts(given, "names")
    with pytest.raises(BadSetting, match="Several paths are meant, and "):
        path_texts(given)


@pytest.mark.parametrize("slices", [["a"], {1: slice(1)}, "a", 5])
def test_slices_that_map_no_names_are_refused(path: Path, slices: Any) -> None:
    with pytest.raises(BadSlice, match=r"slices is .*, which maps no names"):
        load_file(path, slices=slices)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": 0}, "tensor_parallel is a dict"),
        (TensorParallel(0, 2, ["a"]), r"dims is \['a'\], which maps no names"),  # type: ignore[arg-type]
        (TensorParallel(0, 2, {b"a": 0}), "which maps no names"),  # type: ignore[dict-item]
        (TensorParallel(0, 2, {"a": "0"}), "dims has '0' for a"),  # type: ignore[dict-item]
        (TensorParallel(0, 2, {"a": 0.0}), "dims has 0.0 for a"),  # type: ignore[dict-item]
        (TensorParallel(0, 2, {"a": True}), "dims has True for a"),
    ],
)
def test_ranks_parts_that_cannot_be_are_refused(path: Path, given: Any, said: str) -> None:
    with pytest.raises(BadSlice, match=said):
        load_file(path, tensor_parallel=given)


def test_a_pattern_may_say_that_a_tensor_is_read_whole(path: Path) -> None:
    found = load_file(path, tensor_parallel=TensorParallel(1, 2, {"a": None, "*": 0}))
    assert {name: tensor.shape[0] for name, tensor in found.items()} == {"a": 4, "b": 2, "c": 2}
