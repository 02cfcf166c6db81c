"""huggingface_hub itself against the same imitation: what it sees and we see is the same, so the imitation serves."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from headrace.source.uri import parse_source
from headrace.store.base import list_below
from headrace.store.hub.open import find_snapshot
from tests.hub_imitation import Hub, hub_imitation
from tests.store.hub_opening import FILES, NAME, TOKEN, WEIGHTS, store_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with hub_imitation() as running:
        running.tokens.add(TOKEN)
        running.repository(NAME).commit(FILES)
        yield running


def test_the_library_lists_what_we_list(hub: Hub) -> None:
    api = HfApi(endpoint=hub.hub_url, token=False)
    ours = {item.name: (item.size_bytes, item.version) for item in list_below(store_of(hub))}
    info = api.model_info(NAME, files_metadata=True)
    theirs = {
        file.rfilename: (file.size, file.lfs.sha256 if file.lfs else file.blob_id)
        for file in info.siblings or []
    }
    assert ours == theirs
    tree = api.list_repo_tree(NAME, revision=info.sha, recursive=True)
    assert {entry.path for entry in tree if hasattr(entry, "blob_id")} == set(ours)


def test_the_library_downloads_what_we_read(hub: Hub, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        path = hf_hub_download(NAME, name, endpoint=hub.hub_url, cache_dir=tmp_path, token=TOKEN)
        assert Path(path).read_bytes() == FILES[name]
    assert [a.headers.get("authorization") for a in hub.asked if a.where == "cdn"] == [None]


def test_a_snapshot_of_the_library_is_found_offline(hub: Hub, tmp_path: Path) -> None:
    folder = snapshot_download(NAME, endpoint=hub.hub_url, cache_dir=tmp_path, token=False)
    found = find_snapshot(parse_source(f"hf://{NAME}"), tmp_path)
    assert found is not None
    assert found == Path(folder)
    weights = (found / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).digest() == hashlib.sha256(WEIGHTS).digest()


def test_the_library_takes_the_refusals_for_what_they_are(hub: Hub) -> None:
    api = HfApi(endpoint=hub.hub_url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("org/absent")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(NAME, revision="v9")
    hub.repositories[NAME].readers, hub.repositories[NAME].gated = frozenset(), True
    with pytest.raises(GatedRepoError):
        api.model_info(NAME)
