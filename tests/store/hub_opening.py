"""Seeing a hub's imitation through the real store."""

import random

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.hub.settings import resolve_hub_settings
from headrace.store.hub.store import HubStore
from tests.hub_imitation import Hub

NAME = "org/qwen"
TOKEN = "hf_secret"
WEIGHTS = random.Random(11).randbytes(300_000)
FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "model.safetensors": WEIGHTS,
    "README.md": b"# Qwen",
    "templates/tool.jinja": b"{{ tools }}",
    "original/a b#1.safetensors": WEIGHTS[:1000],
}


def store_of(hub: Hub, uri: str = f"hf://{NAME}", **variables: str) -> HubStore:
    """The store of an environment that names this hub and what is given."""
    settings = resolve_hub_settings({"HF_ENDPOINT": hub.hub_url, "HF_HOME": "/nonexistent", **variables})
    return HubStore(parse_source(uri), settings, stall_timeout_s=10)


def weights_of(store: HubStore) -> ObjectInfo:
    """The large file, as listed."""
    item = store.list().find("model.safetensors")
    assert item is not None
    return item
