"""What headers add up to."""

import pytest

from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import Shard, TensorInfo
from headrace.stream.checkpoint.inventory import (
    OUTSIDE,
    layer_of,
    list_tensors,
    total_by_dtype,
    total_by_layer,
    total_of,
)


def shard(name: str, *tensors: TensorInfo) -> Shard:
    return Shard(ObjectInfo(f"m/{name}", name, 1000, "v"), {tensor.name: tensor for tensor in tensors})


SHARDS = [
    shard(
        "a.safetensors",
        TensorInfo("model.layers.10.w", "BF16", (2, 3), 20, 32),
        TensorInfo("model.embed_tokens.weight", "BF16", (5,), 10, 20),
    ),
    shard(
        "b.safetensors",
        TensorInfo("model.layers.9.w", "F32", (2,), 10, 18),
        TensorInfo("model.layers.9.experts.3.w", "BF16", (1,), 18, 20),
        TensorInfo("scalar", "I64", (), 20, 28),
    ),
]


def test_tensors_come_in_the_order_of_their_bytes() -> None:
    rows = list_tensors(SHARDS)
    assert [row.name for row in rows[:2]] == ["model.embed_tokens.weight", "model.layers.10.w"]
    assert (rows[1].object, rows[1].size_bytes, rows[1].elements) == ("a.safetensors", 12, 6)
    assert rows[-1].elements == 1


def test_totals_by_dtype_begin_with_the_largest() -> None:
    totals = total_by_dtype(list_tensors(SHARDS))
    assert [(total.label, total.tensors, total.size_bytes) for total in totals] == [
        ("BF16", 3, 24),
        ("F32", 1, 8),
        ("I64", 1, 8),
    ]


def test_totals_by_layer_follow_the_numbers() -> None:
    totals = total_by_layer(list_tensors(SHARDS))
    assert [(total.label, total.tensors) for total in totals] == [
        (OUTSIDE, 2),
        ("model.layers.9", 2),
        ("model.layers.10", 1),
    ]


def test_the_sum_is_that_of_all() -> None:
    total = total_of(list_tensors(SHARDS))
    assert (total.tensors, total.elements, total.size_bytes) == (5, 6 + 5 + 2 + 1 + 1, 40)
    assert total_of([]).size_bytes == 0


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.experts.7.down_proj.weight", "model.layers.3"),
        ("h.0.attn.bias", "h.0"),
        ("layers.12.w", "layers.12"),
        ("lm_head.weight", OUTSIDE),
        ("norm2.weight", OUTSIDE),
        ("rope.freqs.2", OUTSIDE),  # a number at the end names a tensor, not what it is a part of
        ("layers.².w", OUTSIDE),
    ],
)
def test_a_layer_is_the_name_up_to_its_first_number(name: str, layer: str) -> None:
    assert layer_of(name) == layer
