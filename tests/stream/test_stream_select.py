"""Selections: whatever is asked for, the plan's ranges make up exactly that, and read nothing twice."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.checkpoint.header import DTYPE_BITS, Shard
from headrace.stream.library.indexing import BadIndex
from headrace.stream.plan import ReadPlan, plan_reads
from headrace.stream.select import BadSlice, Selection, TensorParallel, UnknownTensor, select
from tests.profiles import examples
from tests.stream.safetensors_files import Content, content, file_of, shard_of

WHOLE_BYTES = sorted(dtype for dtype, bits in DTYPE_BITS.items() if bits >= 8)
MANY = settings(max_examples=examples(150))


def carry_out(plan: ReadPlan, files: Sequence[bytes], sizes: Sequence[int]) -> list[bytes]:
    """The buffers after all reads. A byte of a file that is read twice is a failure."""
    buffers = [bytearray(b"\xa5" * size) for size in sizes]
    read = [bytearray(len(file)) for file in files]
    for chunk in plan.chunks:
        assert not any(read[chunk.shard][chunk.start : chunk.end])
        read[chunk.shard][chunk.start : chunk.end] = b"\1" * (chunk.end - chunk.start)
        for piece in chunk.pieces:
            data = files[piece.shard][piece.start : piece.end]
            if piece.columns is not None:
                step, first, last = piece.columns.row_bytes, piece.columns.first, piece.columns.last
                data = b"".join(data[at + first : at + last] for at in range(0, len(data), step))
            buffers[piece.buffer][piece.destination : piece.destination + len(data)] = data
    assert sum(map(sum, read)) == plan.bytes_total
    return [bytes(buffer) for buffer in buffers]


def bits_of(tensor: Content) -> Any:
    """The tensor as an array of bits, the last dimension those of an element: dtypes below a byte are cut alike."""
    bits = np.unpackbits(np.frombuffer(tensor.data, np.uint8), bitorder="little")
    return bits.reshape(*tensor.shape, DTYPE_BITS[tensor.dtype])


def bytes_of(tensor: Content, index: tuple[slice, ...]) -> bytes:
    return np.packbits(bits_of(tensor)[index].reshape(-1), bitorder="little").tobytes()


def carried(selection: Selection, files: Sequence[bytes], chunk_bytes: int = 1 << 20) -> list[bytes]:
    plan = plan_reads(selection.placements, chunk_bytes)
    return carry_out(plan, files, [tensor.size_bytes for tensor in selection.tensors])


@st.composite
def tensors(draw: st.DrawFn) -> Content:
    dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
    shape = draw(st.lists(st.integers(0, 6), max_size=4))
    if math.prod(shape) * DTYPE_BITS[dtype] % 8:
        shape.append(8)
    return content(dtype, tuple(shape), draw(st.integers(0, 9)))


@st.composite
def models(draw: st.DrawFn) -> list[dict[str, Content]]:
    """Some files; no name is in two of them."""
    names = draw(st.lists(st.text(max_size=4).filter("__metadata__".__ne__), unique=True, max_size=8))
    files: list[dict[str, Content]] = [{} for _ in range(draw(st.integers(1, 3)))]
    for name in names:
        files[draw(st.integers(0, len(files) - 1))][name] = draw(tensors())
    return files


@MANY
@given(models(), st.integers(16, 300), st.integers(0, 9), st.randoms(use_true_random=False))
def test_a_selection_of_whole_tensors_is_made_up_exactly(
    model: list[dict[str, Content]], chunk_bytes: int, padding: int, chance: random.Random
) -> None:
    files = [file_of(part, padding=padding) for part in model]
    held = {name: tensor for part in model for name, tensor in part.items()}
    names = chance.sample(sorted(held), chance.randint(0, len(held)))
    selection = select([shard_of(file) for file in files], names=names)
    assert [tensor.name for tensor in selection.tensors] == names
    assert carried(selection, files, chunk_bytes) == [held[name].data for name in names]
    assert [tensor.shape for tensor in selection.tensors] == [held[name].shape for name in names]


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Content, tuple[slice, ...]]:
    """A tensor and a box of it that a plan can read: one index, a range, whole dimensions, a range, whole ones."""
    dtype = draw(st.sampled_from(WHOLE_BYTES))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    row, column = sorted((draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, len(shape) - 1))))
    index = []
    for dimension, size in enumerate(shape):
        if dimension < row:
            start = draw(st.integers(0, size - 1))
            stop = start + 1
        elif dimension in (row, column):
            start, stop = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
        else:
            start, stop = 0, size
        index.append(slice(start, stop))
    return content(dtype, shape), tuple(index)


@MANY
@given(boxes(), st.integers(16, 200), st.integers(0, 5))
def test_a_box_of_a_tensor_is_made_up_exactly(
    box: tuple[Content, tuple[slice, ...]], chunk_bytes: int, padding: int
) -> None:
    tensor, index = box
    file = file_of(
        {"before": content("U8", (5,)), "w": tensor, "after": content("U8", (5,))}, padding=padding
    )
    selection = select([shard_of(file)], names=["w"], slices={"w": index})
    assert carried(selection, [file], chunk_bytes) == [bytes_of(tensor, index)]
    assert selection.tensors[0].shape == bits_of(tensor)[index].shape[:-1]


@MANY
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from(WHOLE_BYTES),
    st.data(),
)
def test_the_parts_of_all_ranks_are_the_tensor(
    shape: list[int], ranks: int, dtype: str, data: st.DataObject
) -> None:
    dimension = data.draw(st.integers(0, len(shape) - 1))
    shape[dimension] *= ranks
    tensor = content(dtype, tuple(shape))
    file = file_of({"w": tensor})
    parts = []
    for rank in range(ranks):
        selection = select([shard_of(file)], tensor_parallel=TensorParallel(rank, ranks, {"*": dimension}))
        (part,) = selection.tensors
        (found,) = carried(selection, [file], chunk_bytes=64)
        parts.append(bits_of(Content(dtype, part.shape, found)))
    assert np.array_equal(np.concatenate(parts, axis=dimension), bits_of(tensor))


@MANY
@given(st.integers(1, 6), st.lists(st.integers(1, 6), max_size=2), st.integers(1, 5))
def test_ranks_slices_of_the_first_dimension_share_no_byte(rows: int, below: list[int], ranks: int) -> None:
    tensor = content("BF16", (rows * ranks, *below))
    shard = shard_of(file_of({"w": tensor}))
    spans = []
    for rank in range(ranks):
        (placement,) = select([shard], tensor_parallel=TensorParallel(rank, ranks, {"w": 0})).placements
        assert placement.columns is None
        spans.append((placement.start, placement.end))
    info = shard.tensors["w"]
    assert [start for start, _ in spans] == [info.start, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == info.end


MODEL = {
    "b.weight": content("BF16", (8, 6)),
    "a.weight": content("BF16", (4, 4)),
    "a.bias": content("F32", (4,)),
    "none": content("F32", (0, 4)),
}
FILE = file_of(MODEL)


def shards() -> list[Shard]:
    return [shard_of(FILE)]


def test_without_names_all_come_as_they_lie_in_the_files() -> None:
    other = file_of({"0": content("U8", (2,))})
    selection = select([shard_of(FILE), shard_of(other)])
    assert [tensor.name for tensor in selection.tensors] == [*MODEL, "0"]
    assert [tensor.shard for tensor in selection.tensors] == [0, 0, 0, 0, 1]
    assert selection.size_bytes == len(FILE) - 8 - int.from_bytes(FILE[:8], "little") + 2
    assert (
        [p.group for p in selection.placements] == [p.buffer for p in selection.placements] == [0, 1, 2, 3, 4]
    )


def test_neighbours_in_a_file_are_read_together() -> None:
    assert len(plan_reads(select(shards()).placements).chunks) == 1


def test_a_name_that_is_asked_for_twice_comes_once() -> None:
    assert [t.name for t in select(shards(), names=["a.bias", "none", "a.bias"]).tensors] == [
        "a.bias",
        "none",
    ]


def test_a_name_in_two_files_comes_from_both() -> None:
    selection = select([shard_of(FILE), shard_of(FILE)], names=["a.bias"])
    assert [(tensor.name, tensor.shard) for tensor in selection.tensors] == [("a.bias", 0), ("a.bias", 1)]


def test_names_that_no_file_holds_are_told() -> None:
    with pytest.raises(UnknownTensor, match=r"model.safetensors: c, d\."):
        select(shards(), names=["c", "a.bias", "d"])
    with pytest.raises(UnknownTensor, match="in no files: c"):
        select([], names=["c"])


def test_a_slice_of_what_is_not_selected_is_told() -> None:
    with pytest.raises(UnknownTensor, match=r"b\.weight"):
        select(shards(), names=["a.bias"], slices={"b.weight": slice(0, 1)})


def test_a_ranks_dimension_is_found_by_name_before_pattern_and_by_the_first_pattern_that_fits() -> None:
    dims = {"*.weight": 1, "a.*": 0, "b.weight": 0}
    selection = select(shards(), tensor_parallel=TensorParallel(1, 2, dims))
    shapes = {tensor.name: tensor.shape for tensor in selection.tensors}
    assert shapes == {"b.weight": (4, 6), "a.weight": (4, 2), "a.bias": (2,), "none": (0, 4)}


def test_a_dimension_may_be_counted_from_the_end() -> None:
    selection = select(shards(), names=["b.weight"], tensor_parallel=TensorParallel(0, 3, {"b.*": -1}))
    assert selection.tensors[0].shape == (8, 2)


def test_slices_that_are_given_count_before_a_ranks_part() -> None:
    selection = select(
        shards(),
        names=["b.weight"],
        slices={"b.weight": slice(1, 3)},
        tensor_parallel=TensorParallel(0, 2, {"*": 0}),
    )
    assert selection.tensors[0].shape == (2, 6)


def test_a_dimension_that_the_ranks_do_not_divide_is_refused_by_name() -> None:
    with pytest.raises(BadSlice, match=r"b\.weight: dimension 1 of \[8, 6\] is not divided by 4 ranks"):
        select(shards(), tensor_parallel=TensorParallel(0, 4, {"b.weight": 1}))


def test_a_name_among_a_ranks_dims_must_exist_and_have_the_dimension() -> None:
    with pytest.raises(UnknownTensor, match="missing"):
        select(shards(), tensor_parallel=TensorParallel(0, 2, {"missing": 0}))
    with pytest.raises(BadSlice, match=r"a\.bias has the shape \[4\] and no dimension 1"):
        select(shards(), tensor_parallel=TensorParallel(0, 2, {"a.bias": 1}))


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, size: int) -> None:
    with pytest.raises(BadSlice, match="no rank"):
        select(shards(), tensor_parallel=TensorParallel(rank, size, {}))


def test_columns_of_three_dimensions_are_refused_with_a_way_out() -> None:
    file = file_of({"w": content("F32", (4, 4, 4))})
    with pytest.raises(BadSlice, match="cuts more than two dimensions"):
        select([shard_of(file)], slices={"w": (slice(0, 2), slice(0, 2), slice(0, 2))})


def test_a_number_in_slices_is_refused() -> None:
    with pytest.raises(BadSlice, match="would drop a dimension"):
        select(shards(), slices={"b.weight": 3})
    with pytest.raises(BadIndex, match="step 2"):
        select(shards(), slices={"b.weight": slice(0, 8, 2)})


def test_half_bytes_are_not_cut() -> None:
    file = file_of({"w": content("F4", (4, 6)), "v": content("F6_E2M3", (2, 2, 2))})
    cut = select([shard_of(file)], slices={"w": (slice(0, 4), slice(2, 4)), "v": slice(1, 2)})
    assert [tensor.size_bytes for tensor in cut.tensors] == [4, 3]
    with pytest.raises(BadSlice, match="Cut at multiples of 2 elements"):
        select([shard_of(file)], slices={"w": (slice(0, 4), slice(1, 4))})
    with pytest.raises(BadSlice, match="whole byte in F6_E2M3"):
        select([shard_of(file)], slices={"v": (slice(0, 2), slice(0, 1))})
