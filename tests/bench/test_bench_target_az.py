"""What bench cannot measure is told before anything is loaded."""

import pytest
import torch
from safetensors.torch import save

from headrace.bench.target import find_target
from headrace.store.errors import Unsupported
from tests.store.scripted_azure import Stored, scripted_azure


def test_a_store_that_other_loaders_are_not_given_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_azure() as server:
        server.blobs["m/model.safetensors"] = Stored(save({"w": torch.ones(4)}))
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Unsupported, match="Loading from az:// is not measured"):
            find_target("az://models/m/model.safetensors")
