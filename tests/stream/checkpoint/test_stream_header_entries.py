"""The quick way through a header's JSON: it takes what is plain, and never what the careful way would not."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import BadHeader, parse_header
from headrace.stream.checkpoint.header_entries import plain_entries
from tests.profiles import examples

SEEDED = settings(max_examples=examples(300))
A = '"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
EMPTY = '"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}'
METADATA = '"__metadata__":{"format":"pt"}'


def carefully(header: bytes) -> dict[str, Any]:
    """As json reads it. Raises ValueError where a name stands twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    entries: dict[str, Any] = json.loads(header.decode(), object_pairs_hook=unique)
    entries.pop("__metadata__", None)
    return entries


def member(draw: st.DrawFn) -> str:
    """A member of a header that may be legal, or nearly."""
    name = draw(st.sampled_from(["a", "b", "__metadata__", "é", "a\\u0062"]))
    number = st.sampled_from(
        ["0", "1", "2", "2.0", "1e0", "true", "null", "-1", "9223372036854775808", '"1"']
    )
    keys = draw(
        st.lists(
            st.sampled_from(["dtype", "shape", "data_offsets", "format", "dtyp\\u0065"]),
            min_size=2,
            max_size=4,
        )
        | st.just(["dtype", "shape", "data_offsets"])
    )
    values = {
        "dtype": st.sampled_from(['"U8"', '"BF16"', "8"]),
        "shape": st.lists(number, max_size=2).map(lambda sizes: f"[{','.join(sizes)}]"),
        "data_offsets": st.sampled_from(["[0,0]", "[0,2]", "[2,2]", "[0.0,2]", "[0]"]),
        "format": st.sampled_from(['"pt"', "1", '{"x":1}', '"}"']),
        "dtyp\\u0065": st.just('"U8"'),
    }
    inside = ",".join(f'"{key}":{draw(values[key])}' for key in keys)
    return f'"{name}":{{{inside}}}'


@st.composite
def nearly_headers(draw: st.DrawFn) -> bytes:
    """JSON objects that are headers, or differ from one in a name, a key, a number."""
    members = [
        draw(st.sampled_from([A, EMPTY, METADATA]) | st.just(member(draw)))
        for _ in range(draw(st.integers(0, 4)))
    ]
    return f"{{{','.join(members)}}}".encode()


@SEEDED
@given(nearly_headers())
def test_what_it_takes_is_what_the_careful_way_reads(header: bytes) -> None:
    entries = plain_entries(header)
    if entries is None:
        return
    assert {
        name: {
            "dtype": entry.dtype,
            "shape": list(entry.shape or ()),
            "data_offsets": list(entry.data_offsets or ()),
        }
        for name, entry in entries.items()
    } == carefully(header)
    numbers = [
        number for entry in entries.values() for number in (*(entry.shape or ()), *(entry.data_offsets or ()))
    ]
    assert {type(number) for number in numbers} <= {int}


def test_it_takes_what_the_reference_writes() -> None:
    tensors = {
        "é.weight": torch.zeros(2, 3, dtype=torch.bfloat16),
        "scalar": torch.tensor(1),
        "none": torch.zeros(0),
    }
    file = save(tensors, metadata={"format": "pt", "by": "a test, with: {braces} and [more]"})
    entries = plain_entries(file[8 : 8 + int.from_bytes(file[:8], "little")])
    assert entries is not None and set(entries) == set(tensors)


@pytest.mark.parametrize(
    "members",
    [
        [A, A],
        [A, EMPTY, EMPTY],  # leaves no gap
        [METADATA, A, METADATA],
        ['"__metadata__":{"format":"pt","format":"pt"}', A],
        [A.replace('"dtype":"U8"', '"dtype":"U8","dtype":"U8"')],
        [A, EMPTY.replace('"shape":[0]', '"shape":[0],"shape":[0]')],
    ],
    ids=["name", "name of an empty tensor", "metadata", "key in metadata", "dtype", "shape"],
)
def test_what_stands_twice_is_refused(members: list[str]) -> None:
    header = f"{{{','.join(members)}}}".encode()
    with pytest.raises(BadHeader, match="stands twice"):
        parse_header(header, ObjectInfo("k", "k", 8 + len(header) + 2, "etag"), "k")


@pytest.mark.parametrize(
    "entry",
    [
        '{"dtype":"U8","data_offsets":[0,2],"sha":[2]}',
        '{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}',
        '{"dtype":"U8","shape":[2],"data_offsets":[false,2]}',
        '{"dtype":"U8","shape":[2],"data_offsets":[0,2e0]}',
        '{"dtype":null,"shape":[2],"data_offsets":[0,2]}',
        '{"dtype":"U8","shape":[2],"data_offsets":[0,18446744073709551618]}',
    ],
    ids=["another key for shape", "a float", "a truth", "an exponent", "no dtype", "more than 64 bits"],
)
def test_what_only_looks_like_an_entry_is_refused(entry: str) -> None:
    header = f'{{"a":{entry}}}'.encode()
    with pytest.raises(BadHeader, match="tensor a"):
        parse_header(header, ObjectInfo("k", "k", 8 + len(header) + 2, "etag"), "k")


def test_more_about_a_tensor_than_the_format_has_is_passed_over() -> None:
    header = f'{{{A[:-1]},"note":"more"}}}}'.encode()
    assert set(parse_header(header, ObjectInfo("k", "k", 8 + len(header) + 2, "etag"), "k").tensors) == {"a"}
