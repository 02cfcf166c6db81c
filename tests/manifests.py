"""What a manifest has to say of a file, for tests."""

from pathlib import Path

from headrace.source.manifest import ObjectSums
from headrace.store.block_sums import BlockSummer


def sums_of_file(path: Path) -> ObjectSums:
    """The checksums of a file's blocks."""
    summer = BlockSummer()
    summer.update(path.read_bytes())
    return summer.sums()
