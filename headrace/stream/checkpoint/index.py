"""The index file against the shards' own headers."""

from collections.abc import Sequence

from headrace.source.files import INDEX_NAME, BadModelFiles
from headrace.source.weight_files import read_index
from headrace.stream.checkpoint.header import Shard


def check_index(index: bytes, shards: Sequence[Shard], where: str) -> None:
    """Each tensor that the index names must be in the shard that it names. Raises BadModelFiles."""
    by_name = {shard.item.name: shard for shard in shards}
    lost = [
        f"{tensor} (in {shard})"
        for tensor, shard in read_index(index, where).items()
        if tensor not in by_name[shard].tensors
    ]
    if lost:
        raise BadModelFiles(
            f"{where}/{INDEX_NAME} names {len(lost)} tensors that are not in their shard: {', '.join(lost[:5])}"
            f"{' …' if len(lost) > 5 else ''}.",
            remedy="Upload the shards and the index of one and the same checkpoint.",
        )
