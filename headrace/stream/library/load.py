"""load_file: all tensors of an object or of a model's folder as a dictionary, like safetensors' own load_file."""

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from headrace.errors import HeadraceError
from headrace.stream.checkpoint.header import Shard
from headrace.stream.library.arguments import check_options, path_text
from headrace.stream.library.opening import Opened, open_model, versions_of
from headrace.stream.library.options import LoadOptions, TensorOptions
from headrace.stream.library.tensor_stream import TensorStream, telling
from headrace.stream.library.tensors import Framework

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class TensorTwice(HeadraceError):
    """Two files hold a tensor of the same name."""


class CannotRestart(HeadraceError):
    """A load that cannot begin anew by itself was asked to."""


@overload
def load_file(
    path: str | os.PathLike[str],
    device: "str | int | torch.device | None" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Literal["numpy"],
    restart_on_change: bool = False,
    **options: Unpack[LoadOptions],
) -> "dict[str, npt.NDArray[Any]]": ...
@overload
def load_file(
    path: str | os.PathLike[str],
    device: "str | int | torch.device | None" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Literal["pt"] = "pt",
    restart_on_change: bool = False,
    **options: Unpack[LoadOptions],
) -> "dict[str, torch.Tensor]": ...
def load_file(
    path: str | os.PathLike[str],
    device: "str | int | torch.device | None" = "cpu",
    *,
    s3_credentials: object | None = None,
    is_distributed: bool = False,
    framework: Framework = "pt",
    restart_on_change: bool = False,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Load one safetensors object, or the weights of a folder as its index (or its set of shards) names them.

    Args:
        path: s3://, http(s)://, file:// or a local path; what ends in .safetensors is one object, everything
            else a folder.
        restart_on_change: load again, from a new listing, where an object is replaced meanwhile, once the place has
            come to rest; not for a load that ranks share.
        device, is_distributed, framework, options: as SafetensorsStreamer.stream_files.

    Returns:
        name → tensor, in the order of the files, or of `names`. Each has memory of its own.

    Raises:
        TensorTwice: two files hold the same name.
        CannotRestart: restart_on_change and is_distributed.
        HeadraceError: of every kind that names, stores, headers, the selection or a lack of memory cause.
    """
    check_options("load_file", options, LoadOptions.__annotations__)
    name = path_text(path)

    def load() -> dict[str, Any]:
        return _load(name, device, s3_credentials, is_distributed, framework, options)

    if not restart_on_change:
        return load()
    if is_distributed:
        raise CannotRestart(
            "restart_on_change with is_distributed: ranks that begin anew by themselves could load two versions.",
            remedy="Leave restart_on_change away, and load again on all ranks where it fails with Changed.",
        )
    from headrace.stream.restart import load_through_changes

    return load_through_changes(load, lambda: versions_of(name, s3_credentials))


def _load(
    path: str,
    device: "str | int | torch.device | None",
    s3_credentials: object | None,
    is_distributed: bool,
    framework: Framework,
    options: LoadOptions,
) -> dict[str, Any]:
    with telling(is_distributed):
        opened = open_whole_model(path, s3_credentials)
    stream = TensorStream(
        opened,
        device,
        TensorOptions(framework=framework, **options),
        keeps_all=True,
        is_distributed=is_distributed,
    )
    try:
        found = dict(stream.tensors())
    finally:
        stream.close()
    return {tensor.name: found[tensor.name] for tensor in stream.selection.tensors}


def open_whole_model(path: str, credentials: object | None) -> Opened:
    """What open_model opens, if each name stands for one tensor. Raises TensorTwice too."""
    opened = open_model(path, credentials)
    try:
        _refuse_twins(opened.shards)
    except BaseException:
        opened.close()
        raise
    return opened


def _refuse_twins(shards: tuple[Shard, ...]) -> None:
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
