"""The store of a model on the hub; where the hub may not be asked, the folder of its cache on this disk."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.source.uri import ModelSource
from headrace.store.base import Store
from headrace.store.errors import NotFound
from headrace.store.hub.settings import hub_cache, offline_variable, resolve_hub_settings

_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_logger = logging.getLogger(__name__)


def open_hub(source: ModelSource, environ: Mapping[str, str] = os.environ) -> Store:
    """The hub's store, or with HF_HUB_OFFLINE the folder of the snapshot that its own tools have downloaded.

    Raises:
        NotFound: there is no such snapshot.
        StoreError: settings that cannot work.
    """
    variable = offline_variable(environ)
    if not variable:
        from headrace.store.hub.store import HubStore

        return HubStore(source, resolve_hub_settings(environ))
    cache = hub_cache(environ)
    folder = find_snapshot(source, cache)
    if folder is None:
        raise NotFound(
            source.uri,
            f"{variable} is set, and the hub's cache on this disk ({cache}) has no snapshot of it.",
            remedy=f"Unset {variable}, name a folder or a bucket, or fill the cache with "
            f"`hf download {source.bucket}`.",
        )
    _logger.info("%s is read from %s, since %s is set.", source.uri, folder, variable)
    from headrace.store.local.store import LocalStore

    return LocalStore(ModelSource("file", "", str(folder), source.text))


def find_snapshot(source: ModelSource, cache: Path) -> Path | None:
    """The folder in the cache of the hub's tools that holds this revision, if there is one.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    revision = source.revision or "main"
    repository = cache / f"models--{source.bucket.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (repository / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    folder = repository / "snapshots" / commit / source.prefix
    return folder if folder.is_dir() else None
