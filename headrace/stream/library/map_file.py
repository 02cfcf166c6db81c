"""map_file: a local safetensors file as tensors that are views of it, for who asks for that and bears the risk."""

import os
from typing import TYPE_CHECKING, Any, Literal, overload

from headrace.store.errors import Unsupported
from headrace.store.mapped import map_object
from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.library.arguments import path_text
from headrace.stream.library.load import open_whole_model
from headrace.stream.library.tensors import (
    Framework,
    as_array,
    as_tensor,
    check_dimensions,
    check_dtypes,
    check_framework,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


@overload
def map_file(
    path: str | os.PathLike[str], *, framework: Literal["numpy"]
) -> "dict[str, npt.NDArray[Any]]": ...
@overload
def map_file(
    path: str | os.PathLike[str], *, framework: Literal["pt"] = "pt"
) -> "dict[str, torch.Tensor]": ...
def map_file(path: str | os.PathLike[str], *, framework: Framework = "pt") -> dict[str, Any]:
    """The tensors of one local safetensors file, or of a folder's weights, without reading them.

    A byte is read from the disk when it is first touched, and the system may forget it again. What is written to a
    tensor stays in this process. A tensor that does not begin at a multiple of its elements' size is copied.

    The risk is the caller's: whoever rewrites the file in place changes the tensors, and whoever cuts it off kills
    the process. `load_file` has neither.

    Args:
        path: a file or folder on a local disk; what ends in .safetensors is a file.
        framework: "pt" for torch's tensors, "numpy" for arrays.

    Returns:
        name → tensor, in the order of the files. Each keeps the mapping of its file alive.

    Raises:
        Unsupported: it is no local file, or lies on a network file system.
        Changed: a file was replaced since its header was read.
        TensorTwice: two files hold the same name.
        HeadraceError: of every kind that names, headers and files can cause.
    """
    import numpy as np

    check_framework(framework)
    opened = open_whole_model(path_text(path), None)
    opened.close()
    source = opened.store.source
    if source.scheme != "file":
        raise Unsupported(source.uri, "Only local files can be mapped.", remedy="Use load_file.")
    infos = [info for shard in opened.shards for info in shard.tensors.values()]
    check_dtypes(framework, [(info.name, info.dtype) for info in infos])
    check_dimensions(framework, [(info.name, info.shape) for info in infos])
    shown = as_array if framework == "numpy" else as_tensor
    tensors: dict[str, Any] = {}
    for shard in opened.shards:
        data = np.frombuffer(map_object(shard.item), np.uint8)
        for info in shard.tensors.values():
            own = data[info.start : info.end]
            if info.start % max(1, DTYPE_BITS[info.dtype] // 8):
                own = own.copy()
            tensors[info.name] = shown(own, info.dtype, info.shape)
    return tensors
