"""The manifest that a push makes: its checksums are computed while the weights are hashed, so they are read no more
often than without it."""

from collections.abc import Container, Sequence
from pathlib import Path

from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import encode_manifest
from headrace.store.block_sums import BlockSummer
from headrace.store.upload.plan import LocalFile

_WEIGHTS_SUFFIX = ".safetensors"


class ManifestMaker:
    """Collects the weights of one push. Belongs to one thread."""

    def __init__(self) -> None:
        self._summers: dict[str, BlockSummer] = {}

    def summer(self, file: LocalFile) -> BlockSummer | None:
        """Takes the file's bytes; None for a file that is none of the model's weights."""
        if not is_weight(file.name):
            return None
        self._summers[file.name] = summer = BlockSummer()
        return summer

    def write(self, folder: Path) -> LocalFile | None:
        """The manifest of what was taken in, as a file in a folder; None where there were no weights."""
        if not self._summers:
            return None
        content = encode_manifest({name: summer.sums() for name, summer in self._summers.items()})
        path = folder / MANIFEST_NAME
        path.write_bytes(content)
        return LocalFile(path, MANIFEST_NAME, len(content))


def needs_manifest(files: Sequence[LocalFile], present: Container[str], *, wanted: bool) -> bool:
    """Whether a push of these files to a prefix with the names `present` makes a manifest."""
    names = [file.name for file in files]
    return (wanted or MANIFEST_NAME in present or MANIFEST_NAME in names) and any(map(is_weight, names))


def is_weight(name: str) -> bool:
    """Whether a model's weights may be read from a file of this name below the model's folder."""
    return name.endswith(_WEIGHTS_SUFFIX) and "/" not in name
