"""What tests of the library share: credentials for a scripted store, and tensors as plain bytes."""

from collections.abc import Mapping
from typing import Any

import torch

from headrace.stream.library.credentials import S3Credentials
from tests.faults.opening import ACCESS_KEY, SECRET
from tests.faults.server import FaultServer, Stored
from tests.stream.safetensors_files import Content, file_of

FOLDER = "s3://bucket/model"


def credentials_of(server: FaultServer) -> S3Credentials:
    """Those that lead to the server."""
    return S3Credentials(ACCESS_KEY, SECRET, region_name="us-east-1", endpoint=server.url)


def put(server: FaultServer, name: str, tensors: Mapping[str, Content], **options: Any) -> str:
    """Store a safetensors object; its URI."""
    server.objects[f"model/{name}"] = Stored.of(file_of(tensors, **options))
    return f"{FOLDER}/{name}"


def data_of(tensor: Any) -> bytes:
    """The bytes of a numpy array or a torch tensor."""
    if isinstance(tensor, torch.Tensor):
        return (
            bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            if tensor.numel()
            else b""
        )
    return bytes(tensor.tobytes())
