"""load_file: all tensors of an object or of a model's folder as a dictionary, like safetensors' own load_file."""

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from headrace.errors import HeadraceError
from headrace.stream.header import Shard
from headrace.stream.opening import open_model
from headrace.stream.tensor_stream import LoadOptions, TensorStream
from headrace.stream.tensors import Framework

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class TensorTwice(HeadraceError):
    """Two files hold a tensor of the same name."""


@overload
def load_file(
    path: str | os.PathLike[str],
    device: "str | torch.device" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Literal["numpy"],
    **options: Unpack[LoadOptions],
) -> "dict[str, npt.NDArray[Any]]": ...
@overload
def load_file(
    path: str | os.PathLike[str],
    device: "str | torch.device" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Literal["pt"] = "pt",
    **options: Unpack[LoadOptions],
) -> "dict[str, torch.Tensor]": ...
def load_file(
    path: str | os.PathLike[str],
    device: "str | torch.device" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Framework = "pt",
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Load one safetensors object, or the weights of a folder as its index (or its set of shards) names them.

    Args:
        path: s3://, http(s)://, file:// or a local path; what ends in .safetensors is one object, everything
            else a folder.
        device, is_distributed, framework, options: as SafetensorsStreamer.stream_files.

    Returns:
        name → tensor, in the order of the files, or of `names`. Each has memory of its own.

    Raises:
        TensorTwice: two files hold the same name.
        HeadraceError: of every kind that names, stores, headers, the selection or a lack of memory cause.
    """
    opened = open_model(os.fspath(path), s3_credentials)
    refuse_twins(opened.shards)
    stream = TensorStream(
        opened, device, keeps_all=True, is_distributed=is_distributed, framework=framework, **options
    )
    try:
        found = dict(stream.tensors())
    finally:
        stream.close()
    return {tensor.name: found[tensor.name] for tensor in stream.selection.tensors}


def refuse_twins(shards: tuple[Shard, ...]) -> None:
    """Raise TensorTwice, naming the files, where a name is in two of them."""
    seen: dict[str, str] = {}
    for shard in shards:
        for name in shard.tensors:
            if name in seen:
                raise TensorTwice(
                    f"Tensor {name} is in {seen[name]} and in {shard.item.name}.",
                    remedy="Keep one model in a folder, or load the files one by one.",
                )
            seen[name] = shard.item.name
