"""safetensors headers: whatever is legal is read as the reference reads it, whatever is not is refused."""

import json
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    BadHeader,
    Shard,
    header_length,
    parse_header,
)
from tests.profiles import examples

WHERE = "s3://bucket/model/model.safetensors"
SEEDED = settings(max_examples=examples(120))
Entries = dict[str, Any]


def parse(header: bytes, data_bytes: int) -> Shard:
    item = ObjectInfo("model/model.safetensors", "model.safetensors", 8 + len(header) + data_bytes, "etag")
    return parse_header(header, item, WHERE)


def entry(dtype: str, shape: list[int], start: int, end: int) -> Entries:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@st.composite
def legal_headers(draw: st.DrawFn) -> tuple[Entries, int]:
    """Entries in any order of names over a gapless data section, and its length."""
    names = draw(st.lists(st.text(max_size=8).filter(lambda n: n != "__metadata__"), unique=True, max_size=8))
    entries: Entries = {}
    end = 0
    for name in names:
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        elements = 1
        for size in shape:
            elements *= size
        if elements * DTYPE_BITS[dtype] % 8:
            shape.append(8)  # formats below a byte: make it whole bytes
            elements *= 8
        start, end = end, end + elements * DTYPE_BITS[dtype] // 8
        entries[name] = entry(dtype, shape, start, end)
    if draw(st.booleans()):
        entries["__metadata__"] = draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
    order = draw(st.permutations(sorted(entries)))
    return {name: entries[name] for name in order}, end


@SEEDED
@given(legal_headers(), st.integers(0, 9))
def test_any_legal_header_is_read(legal: tuple[Entries, int], padding: int) -> None:
    entries, data_bytes = legal
    header = json.dumps(entries).encode() + b" " * padding
    tensors = parse(header, data_bytes).tensors
    assert {
        name: entry(t.dtype, list(t.shape), t.start - 8 - len(header), t.end - 8 - len(header))
        for name, t in tensors.items()
    } == {name: value for name, value in entries.items() if name != "__metadata__"}


@SEEDED
@given(legal_headers(), st.data())
def test_a_mutated_header_is_read_or_refused_and_nothing_else(
    legal: tuple[Entries, int], data: st.DataObject
) -> None:
    entries, data_bytes = legal
    header = bytearray(json.dumps(entries).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(header) - 1))
        header[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        header = header or bytearray(b" ")
    try:
        shard = parse(bytes(header), data_bytes)
    except BadHeader:
        return
    spans = sorted((t.start, t.end) for t in shard.tensors.values())
    ends = [8 + len(header), *(end for _, end in spans)]
    assert [start for start, _ in spans] + [8 + len(header) + data_bytes] == ends


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@SEEDED
@given(
    st.dictionaries(
        st.text(max_size=4),
        JSON_VALUES
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["BF16", "F4", "I9"]) | JSON_VALUES,
                "shape": st.lists(JSON_VALUES | st.integers(-1, 1 << 70), max_size=4) | JSON_VALUES,
                "data_offsets": st.lists(JSON_VALUES | st.integers(-1, 1 << 70), max_size=3) | JSON_VALUES,
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_json_is_read_or_refused_and_nothing_else(value: Entries) -> None:
    try:
        parse(json.dumps(value).encode(), 64)
    except BadHeader as error:
        str(error).encode()  # a message that no log can hold would hide the error


@SEEDED
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        parse(data, 0)
    except BadHeader:
        return
    assert isinstance(json.loads(data), dict)


BF16_8 = entry("BF16", [2, 2], 0, 8)
WRONG: dict[str, tuple[Entries, int, str]] = {
    "overlap": ({"a": BF16_8, "b": entry("U8", [4], 6, 10)}, 10, "tensor b overlaps"),
    "the same bytes": ({"a": BF16_8, "b": BF16_8}, 8, "tensor b overlaps"),
    "gap": ({"a": BF16_8, "b": entry("U8", [4], 9, 13)}, 13, "tensor b leaves a gap"),
    "gap at the start": ({"a": entry("U8", [4], 1, 5)}, 5, "tensor a leaves a gap"),
    "cut off": ({"a": BF16_8}, 7, "the object is cut off"),
    "bytes after the end": ({"a": BF16_8}, 9, "has bytes after its last tensor"),
    "no tensors but bytes": ({}, 1, "has bytes after its last tensor"),
    "size does not fit shape": ({"a": entry("BF16", [2, 2], 0, 7)}, 7, "takes 64 bits but spans 7 bytes"),
    "offsets backwards": ({"a": entry("U8", [0], 8, 0)}, 8, "takes 0 bits but spans -8 bytes"),
    "half a byte": ({"a": entry("F4", [3], 0, 2)}, 2, "takes 12 bits"),
    "unknown dtype": ({"a": entry("FP8", [2], 0, 2)}, 2, "unknown dtype FP8"),
    "negative size": ({"a": entry("U8", [-1, -2], 0, 2)}, 2, "impossible shape [-1, -2]"),
    "a size that is true": ({"a": entry("U8", [True], 0, 1)}, 1, "impossible shape [True]"),
    "a size that is a float": ({"a": {**BF16_8, "shape": [4.0]}}, 8, "impossible shape [4.0]"),
    "overflow": ({"a": entry("U8", [1 << 40, 1 << 40], 0, 0)}, 0, "impossible shape"),
    "a size beyond 63 bits": ({"a": entry("U8", [1 << 63], 0, 0)}, 0, "impossible shape"),
    "an offset beyond 63 bits": ({"a": entry("U8", [1], 0, 1 << 63)}, 1, "impossible data_offsets"),
    "three offsets": ({"a": {**BF16_8, "data_offsets": [0, 8, 8]}}, 8, "impossible data_offsets"),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, 1, "impossible shape None"),
    "an entry that is a list": ({"a": []}, 0, "is not described by a JSON object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_illegal_header_is_refused_with_its_reason(name: str) -> None:
    entries, data_bytes, said = WRONG[name]
    with pytest.raises(BadHeader) as caught:
        parse(json.dumps(entries).encode(), data_bytes)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{WHERE}: ")
    assert "upload it again" in caught.value.remedy


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b"",
        b"[1]",
        b"nul",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 10_000,
        b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    ],
    ids=[
        "name twice",
        "key twice",
        "empty",
        "list",
        "cut",
        "no utf-8",
        "deep lists",
        "deep maps",
        "long number",
        "half a surrogate pair",
    ],
)
def test_what_is_no_header_at_all_is_refused(header: bytes) -> None:
    with pytest.raises(BadHeader):
        parse(header, 1)


def test_a_shape_of_a_million_dimensions_is_refused_before_it_is_multiplied_out() -> None:
    # The whole product would have sixty million bits and take minutes.
    header = json.dumps({"a": entry("U8", [(1 << 62) + 1] * 1_000_000, 0, 1)}).encode()
    with pytest.raises(BadHeader) as caught:
        parse(header, 1)
    assert len(str(caught.value)) < 1_000


def test_a_name_with_a_lone_surrogate_makes_a_message_that_can_be_sent() -> None:
    with pytest.raises(BadHeader) as caught:
        parse(b'{"\\ud800":{"dtype":"?","shape":[],"data_offsets":[0,0]}}', 0)
    assert "\\ud800" in str(caught.value)
    caught.value.message.encode()


def test_a_file_that_the_reference_writes_is_read_as_the_reference_reads_it() -> None:
    file = save(
        {
            "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
            "empty": torch.empty((0, 4), dtype=torch.bfloat16),
            "scalar": torch.tensor(7, dtype=torch.int64),
            "b": torch.ones(5, dtype=torch.float8_e4m3fn),
        },
        metadata={"format": "pt"},
    )
    length = header_length(file[:8], len(file), WHERE)
    shard = parse(file[8 : 8 + length], len(file) - 8 - length)
    for name, info in safetensors.deserialize(file):  # type: ignore[no-untyped-call]
        tensor = shard.tensors[name]
        assert (tensor.dtype, list(tensor.shape)) == (info["dtype"], info["shape"])
        assert file[tensor.start : tensor.end] == info["data"]


@pytest.mark.parametrize(
    ("prefix", "size_bytes"),
    [
        (b"", 0),
        (b"\0" * 7, 7),
        ((1).to_bytes(8, "little"), 8),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), MAX_HEADER_BYTES * 2),
        (b"\xff" * 8, 1 << 40),
        (b"version https://git-lfs.github.com", 130),
    ],
)
def test_a_header_length_that_the_object_cannot_hold_is_refused(prefix: bytes, size_bytes: int) -> None:
    with pytest.raises(BadHeader):
        header_length(prefix, size_bytes, WHERE)


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a": None}, [], "text", 5])
def test_metadata_that_is_no_object_of_strings_is_refused_as_the_reference_does(metadata: object) -> None:
    header = json.dumps({"__metadata__": metadata, "a": entry("U8", [1], 0, 1)}).encode()
    with pytest.raises(BadHeader, match="__metadata__ is no JSON object of strings"):
        parse(header, 1)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(len(header).to_bytes(8, "little") + header + b"x")  # type: ignore[no-untyped-call]


def test_a_pointer_of_git_lfs_is_called_that() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 269060552\n"
    with pytest.raises(BadHeader, match=r"a pointer of git-lfs.*git lfs pull"):
        header_length(pointer, len(pointer), WHERE)
