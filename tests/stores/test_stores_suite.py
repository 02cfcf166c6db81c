"""The same model in every store, by the same commands: push, check, inspect, ls, pull, stream, serve."""

import pytest
from safetensors import safe_open

import headrace
from tests.e2e.serving import serving
from tests.stores.place import Pushed

pytestmark = pytest.mark.timeout(180)


def test_the_bytes_that_stream_are_those_of_the_files(pushed: Pushed) -> None:
    with pushed.place.entered():
        tensors = headrace.load_file(pushed.uri)
    seen = 0
    for path in sorted(pushed.folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                assert tensors[name].equal(file.get_tensor(name)), name
                seen += 1
    assert seen == len(tensors) > 10


def test_the_model_is_served(pushed: Pushed) -> None:
    flags = ["--device", "cpu", "--max-total-tokens", "1024"]
    with serving("--model-path", pushed.uri, *flags, environ=pushed.place.variables) as server:
        assert server.complete("The capital of France is", max_tokens=4)
