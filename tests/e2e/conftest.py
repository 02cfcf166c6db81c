"""Models in the bucket, and servers that several tests ask."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from tests.e2e.serving import Server, serving
from tests.tiny_models import in_dtype, make_tiny, save_checkpoint

Upload = Callable[[Path, str], str]


@pytest.fixture(scope="session")
def upload(seaweed: SeaweedStore) -> Upload:
    """Puts a folder, whatever it holds, into the store: folder and URI → the URI."""

    def put(folder: Path, uri: str) -> str:
        settings = resolve_s3_settings(seaweed.environment())
        upload_files(find_files(folder).files, parse_source(uri), settings, create_bucket=True)
        return uri

    return put


@pytest.fixture(scope="session")
def tiny_qwen2() -> PreTrainedModel:
    """A random Qwen2 in bfloat16 with the context length of the guide."""
    return in_dtype(make_tiny("qwen2", max_position_embeddings=32768), torch.bfloat16)


@pytest.fixture(scope="session")
def tiny_folder(tiny_qwen2: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That model as a checkpoint of three shards. Read-only by agreement."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen"
    save_checkpoint(tiny_qwen2, folder, shards=3)
    return folder


@pytest.fixture(scope="session")
def tiny_uri(upload: Upload, tiny_folder: Path) -> str:
    """That model in the store."""
    return upload(tiny_folder, "s3://tiny/qwen")


@pytest.fixture(scope="session")
def tiny_reference(tiny_qwen2: PreTrainedModel) -> PreTrainedModel:
    """That model in float32, on the weights that the bucket holds.

    A new model: the other one's rotary frequencies, which are no weights, were rounded with it.
    """
    model = make_tiny("qwen2", max_position_embeddings=32768)
    model.load_state_dict(tiny_qwen2.state_dict())
    return model


@pytest.fixture(scope="session")
def exact(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """It in float32, with prompts in chunks, for every test that leaves the server as it was."""
    flags = ["--dtype", "float32", "--device", "cpu", "--chunked-prefill-size", "32"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


@pytest.fixture(scope="session")
def smollm2(smollm2_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """The real model in float32, which tells what its prefix cache held."""
    flags = ["--dtype", "float32", "--device", "cpu", "--max-total-tokens", "2048", "--enable-cache-report"]
    with serving("--model-path", smollm2_uri, *flags, environ=seaweed.environment()) as running:
        yield running
