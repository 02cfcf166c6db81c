"""The sequence of docs/guides/rustfs.md, from upload to teardown, with the AWS CLI and an S3 store."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.demo.store import SeaweedStore
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.e2e.serving import Server, free_port, surroundings

AWS = Path(sys.executable).parent / "aws"
FLAGS = shlex.split(
    "--served-model-name qwen --host 0.0.0.0 --device cpu --trust-remote-code --disable-overlap-schedule "
    "--mem-fraction-static 0.45"
)


def exported(store: SeaweedStore) -> dict[str, str]:
    """The variables that the guide exports, and no other."""
    return {
        "AWS_ACCESS_KEY_ID": store.access_key,
        "AWS_SECRET_ACCESS_KEY": store.secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store.endpoint_url,
    }


@pytest.mark.parametrize(
    ("model", "bucket", "context_length", "prompt", "expected"),
    [
        ("tiny_folder", "my-bucket", 32768, "RustFS is", ""),
        ("smollm2_folder", "my-other-bucket", 8192, "The capital of France is", "Paris"),
    ],
    ids=["tiny-qwen2-in-shards", "smollm2"],
)
def test_the_sequence_works_as_it_is_written(
    model: str,
    bucket: str,
    context_length: int,
    prompt: str,
    expected: str,
    seaweed: SeaweedStore,
    request: pytest.FixtureRequest,
) -> None:
    folder: Path = request.getfixturevalue(model)
    uri = f"s3://{bucket}/models/qwen"
    with surroundings() as place:

        def aws(*arguments: str) -> None:
            environ = place.environment(exported(seaweed))
            command = [str(AWS), "s3", *arguments, "--endpoint-url", seaweed.endpoint_url]
            subprocess.run(command, env=environ, cwd=folder.parent, check=True, capture_output=True)

        client = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=2)
        client.create_bucket(Bucket=bucket)
        aws("cp", folder.name, uri, "--recursive")

        arguments = ["--model-path", uri, *FLAGS, "--port", str(free_port())]
        server = Server(*arguments, environ=exported(seaweed), place=place)
        server.wait_until_ready()
        for flag in ("--trust-remote-code", "--disable-overlap-schedule"):
            assert server.text().count(f"{flag} has no effect here") == 1

        models = server.get("/v1/models").json()
        created = models["data"][0].pop("created")
        assert isinstance(created, int)
        assert models == {
            "object": "list",
            "data": [
                {
                    "id": "qwen",
                    "object": "model",
                    "owned_by": "headrace",
                    "root": "qwen",
                    "parent": None,
                    "max_model_len": context_length,
                }
            ],
        }

        body = {"model": "qwen", "prompt": prompt, "max_tokens": 16, "temperature": 0}
        answer = server.post("/v1/completions", body).json()
        text = answer["choices"][0].pop("text")
        assert text.strip() and expected in text
        usage = answer.pop("usage")
        assert isinstance(answer.pop("id"), str) and isinstance(answer.pop("created"), int)
        assert answer == {
            "object": "text_completion",
            "model": "qwen",
            "choices": [{"index": 0, "logprobs": None, "finish_reason": "length"}],
        }
        assert usage["completion_tokens"] == 16
        assert usage["total_tokens"] == usage["prompt_tokens"] + 16
        assert set(usage) == {"prompt_tokens", "total_tokens", "completion_tokens"}

        assert server.stop() == 0
        aws("rm", uri, "--recursive")
        client.delete_bucket(Bucket=bucket)  # refused unless it is empty
