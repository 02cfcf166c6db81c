"""The table of stores that the suite runs on. A new store: its fixture in a file of its own, and a line in PLACES."""

from pathlib import Path

import pytest
import torch

from headrace.cli.main import main
from tests.stores.azurite import azurite_place, azurite_tls_place
from tests.stores.fake_gcs import fake_gcs_place, fake_gcs_tls_place
from tests.stores.folder import folder_place, web_place
from tests.stores.hub import hub_place, hub_tls_place
from tests.stores.place import Place, Pushed
from tests.stores.real import named, real_s3_place
from tests.stores.real_azure import real_azure_place
from tests.stores.real_gcs import real_gcs_place
from tests.stores.seaweed import seaweed_place, seaweed_tls_place
from tests.stores.seaweed_virtual import seaweed_virtual_place
from tests.tiny_models import in_dtype, make_tiny, save_checkpoint

# Fixtures that give a Place; they are imported above, as pytest finds them by their names here.
PLACES = [
    folder_place,
    web_place,
    seaweed_place,
    seaweed_tls_place,
    seaweed_virtual_place,
    fake_gcs_place,
    fake_gcs_tls_place,
    azurite_place,
    azurite_tls_place,
    hub_place,
    hub_tls_place,
]
# Real clouds are asked only where somebody names a bucket for it.
REAL = {
    "HEADRACE_TEST_S3_URI": real_s3_place,
    "HEADRACE_TEST_GCS_URI": real_gcs_place,
    "HEADRACE_TEST_AZURE_URI": real_azure_place,
}
PLACES += [fixture for variable, fixture in REAL.items() if named(variable)]


@pytest.fixture(scope="session", params=[fixture.__name__ for fixture in PLACES])
def place(request: pytest.FixtureRequest) -> Place:
    """Each store in turn."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few hundred kilobytes in three shards."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen"
    save_checkpoint(in_dtype(make_tiny("qwen2"), torch.bfloat16), folder, shards=3)
    return folder


@pytest.fixture(scope="session", params=["tiny", pytest.param("smollm2", marks=pytest.mark.soak)])
def pushed(request: pytest.FixtureRequest, place: Place) -> Pushed:
    """A model in the store: put there by `headrace push` where that can write."""
    folder: Path = request.getfixturevalue({"tiny": "tiny_model", "smollm2": "smollm2_folder"}[request.param])
    uri = f"{place.uri}/{request.param}"
    with place.entered():
        if place.put is not None:
            place.put(folder, uri)
        else:
            assert main(["push", str(folder), uri, "--manifest", "--quiet"]) == 0
    return Pushed(place, uri, folder)
