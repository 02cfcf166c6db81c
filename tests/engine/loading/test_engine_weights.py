"""Layout and headers joined: every byte of the checkpoint has one right place, or there is an error."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.loading.memory_views import wrap_parameters
from headrace.engine.loading.weights import ALIGNMENT_BYTES, WrongTensors, place_tensors, plan_arena
from headrace.models.layout import Layout, ParameterSpec, SourceTensor
from headrace.source.objects import ObjectInfo
from headrace.stream.arena import Arena
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, TensorInfo
from headrace.stream.convert import CannotConvert

WHERE = "s3://bucket/model"
Shapes = Mapping[str, tuple[int, ...]]


def shard(shapes: Shapes, *, name: str = "model.safetensors", dtype: str = "F32") -> Shard:
    """A shard whose tensors lie one after another from byte 100."""
    tensors, end = {}, 100
    for tensor, shape in shapes.items():
        start, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        tensors[tensor] = TensorInfo(tensor, dtype, shape, start, end)
    return Shard(ObjectInfo(name, name, end, "v"), tensors)


def parameter(name: str, group: int = 0, **sources: tuple[int, ...]) -> ParameterSpec:
    shapes = list(sources.values())
    shape = (sum(each[0] for each in shapes), *shapes[0][1:])
    return ParameterSpec(
        name, shape, tuple(SourceTensor(source, sources[source]) for source in sources), group
    )


LAYOUT = Layout(
    parameters=(
        parameter("embed", e=(6, 4)),
        parameter("qkv", 1, q=(3, 4), k=(2, 4), v=(2, 4)),
        parameter("norm", 2, n=(4,)),
    ),
    embedding="embed",
    ignored=(r"head", r"layers\.\d+\.inv_freq"),
)
WHOLE: Shapes = {"e": (6, 4), "q": (3, 4), "k": (2, 4), "v": (2, 4), "n": (4,)}


def refusal(*shards: Shard, layout: Layout = LAYOUT) -> WrongTensors:
    with pytest.raises(WrongTensors) as caught:
        place_tensors(layout, plan_arena(layout, "float32"), shards, WHERE)
    return caught.value


def without(name: str) -> Shapes:
    return {key: shape for key, shape in WHOLE.items() if key != name}


def test_parameters_lie_in_load_order_at_aligned_offsets() -> None:
    plan = plan_arena(LAYOUT, "bfloat16")
    assert [slot.name for slot in plan.slots] == ["embed", "qkv", "norm"]
    assert [slot.size_bytes for slot in plan.slots] == [48, 56, 8]
    assert [slot.offset for slot in plan.slots] == [0, 64, 128]
    assert plan.size_bytes == 192
    assert all(slot.offset % ALIGNMENT_BYTES == 0 for slot in plan.slots)


@pytest.mark.parametrize(
    "split",
    [[["e", "q", "k", "v", "n"]], [["v", "n"], ["k", "e"], ["q"]]],
    ids=["one-shard", "three-shards"],
)
def test_the_rows_of_a_fused_parameter_land_where_torch_cat_puts_them(split: list[list[str]]) -> None:
    values = {
        name: torch.arange(math.prod(shape)).reshape(shape) + 100.0 * i
        for i, (name, shape) in enumerate(WHOLE.items())
    }
    shards = [shard({name: WHOLE[name] for name in names}, name=f"{names}") for names in split]
    objects = [
        np.concatenate(
            [np.zeros(25, np.float32), *(values[name].float().numpy().ravel() for name in names)]
        ).tobytes()
        for names in split
    ]
    plan = plan_arena(LAYOUT, "float32")
    arena = Arena(plan.size_bytes)
    for place in place_tensors(LAYOUT, plan, shards, WHERE):
        data = objects[place.shard][place.start : place.end]
        arena.view[place.destination : place.destination + len(data)] = data
    parameters = wrap_parameters(arena, plan)
    assert torch.equal(parameters["embed"], values["e"])
    assert torch.equal(parameters["qkv"], torch.cat([values["q"], values["k"], values["v"]]))
    assert torch.equal(parameters["norm"], values["n"])


def test_a_converted_tensor_goes_to_the_place_of_its_new_size() -> None:
    places = place_tensors(LAYOUT, plan_arena(LAYOUT, "bfloat16"), [shard(WHOLE)], WHERE)
    key = next(place for place in places if place.start == 100 + (24 + 12) * 4)
    assert (key.source_dtype, key.dtype) == ("F32", "BF16")
    assert key.destination == 64 + 12 * 2
    assert key.end - key.start == 8 * 4


@given(st.data())
def test_placements_cover_every_parameter_once_without_touching_another(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6))
    columns = data.draw(st.integers(1, 17))
    layout = Layout(
        tuple(
            parameter(f"p{i}", i, **{f"s{i}_{j}": (count, columns) for j, count in enumerate(counts)})
            for i, counts in enumerate(rows)
        ),
        embedding="p0",
    )
    sources = {source.name: source.shape for spec in layout.parameters for source in spec.sources}
    names = data.draw(st.permutations(sorted(sources)))
    cut = data.draw(st.integers(1, len(names)))
    parts = [part for part in (names[:cut], names[cut:]) if part]
    shards = [shard({name: sources[name] for name in part}, dtype="BF16") for part in parts]
    plan = plan_arena(layout, "bfloat16")
    touched = np.zeros(plan.size_bytes, np.int32)
    for place in place_tensors(layout, plan, shards, WHERE):
        touched[place.destination : place.destination + place.end - place.start] += 1
    expected = np.zeros(plan.size_bytes, np.int32)
    for slot in plan.slots:
        expected[slot.offset : slot.offset + slot.size_bytes] += 1
    assert (touched == expected).all()
    assert expected.max() == 1


def test_a_missing_tensor_is_named() -> None:
    assert refusal(shard(without("k"))).message == f"{WHERE}: the tensors do not fit config.json. Missing: k."


def test_a_tensor_that_no_parameter_takes_is_named() -> None:
    assert refusal(shard({**WHOLE, "extra": (1,)})).message.endswith("Unexpected: extra.")


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    error = refusal(shard({**WHOLE, "k": (4, 2)}))
    assert error.message.endswith("Of another shape: k [4, 2] (config.json: [2, 4]).")


def test_all_that_is_wrong_is_said_at_once() -> None:
    error = refusal(shard({**without("q"), "n": (5,), "extra": (1,)}))
    assert error.message.endswith(
        "Missing: q. Unexpected: extra. Of another shape: n [5] (config.json: [4])."
    )
    assert error.remedy == "Upload config.json and weights of one and the same checkpoint."


def test_more_than_eight_names_are_counted() -> None:
    error = refusal(shard({**WHOLE, **{f"x{i:02}": (1,) for i in range(11)}}))
    assert "x00, x01, x02, x03, x04, x05, x06, x07 and 3 more." in error.message


def test_a_tensor_in_two_shards_is_named_with_both() -> None:
    error = refusal(shard(WHOLE, name="a.safetensors"), shard({"k": (2, 4)}, name="b.safetensors"))
    assert error.message.endswith("In two shards: k (in a.safetensors and b.safetensors).")


def test_what_the_layout_ignores_may_be_there_and_is_not_read() -> None:
    extra = {"head": (6, 4), "layers.12.inv_freq": (2,)}
    plan = plan_arena(LAYOUT, "float32")
    places = place_tensors(LAYOUT, plan, [shard({**WHOLE, **extra})], WHERE)
    assert sum(place.end - place.start for place in places) == sum(slot.size_bytes for slot in plan.slots)


def test_a_name_that_only_contains_an_ignored_one_is_unexpected() -> None:
    assert refusal(shard({**WHOLE, "head.extra": (1,)})).message.endswith("Unexpected: head.extra.")


def test_a_dtype_that_is_not_converted_is_refused_by_name() -> None:
    with pytest.raises(CannotConvert, match="Tensor e is stored as I8"):
        place_tensors(LAYOUT, plan_arena(LAYOUT, "float32"), [shard(WHOLE, dtype="I8")], WHERE)
