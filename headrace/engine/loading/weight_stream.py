"""A checkpoint's weights on their way into an arena: the transfer, and what proves it. No torch."""

from typing import TYPE_CHECKING

from headrace.engine.loading.checkpoint import Checkpoint
from headrace.ipc.options import EngineOptions
from headrace.source.files import MANIFEST_NAME
from headrace.stream.arena import Arena
from headrace.stream.plan import ReadPlan
from headrace.stream.transfer.staging import DEFAULT_STAGING_BYTES
from headrace.stream.transfer.transfer import Transfer
from headrace.stream.variables import StreamSettings

if TYPE_CHECKING:
    from headrace.stream.verify.verifier import BlockVerifier


def verifier_of_checkpoint(options: EngineOptions, checkpoint: Checkpoint) -> "BlockVerifier | None":
    """What proves the bytes, as the options ask for it; None where nothing does. `close` it at the end.

    Raises:
        BadManifest: the manifest cannot be read, or was made for other objects.
    """
    mode = options.load_config.verify or "manifest"
    if mode == "off":
        return None
    from headrace.stream.verify.sums import verifier_of

    return verifier_of(mode, checkpoint.store, checkpoint.shards, checkpoint.files.get(MANIFEST_NAME))


def start_transfer(
    settings: StreamSettings,
    checkpoint: Checkpoint,
    plan: ReadPlan,
    arena: Arena,
    verifier: "BlockVerifier | None",
) -> Transfer:
    """Begin to read, on the connections that the checkpoint was opened with."""
    limit = settings.memory_limit
    return Transfer(
        plan,
        [shard.item for shard in checkpoint.shards],
        checkpoint.store,
        arena.view,
        concurrency=settings.concurrency,
        readers=checkpoint.pool.take_readers(),
        verifier=verifier,
        staging_bytes=DEFAULT_STAGING_BYTES if limit is None else limit if limit >= 0 else None,
    )
