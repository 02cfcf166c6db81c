"""Can what is loaded be verified?"""

from collections.abc import Mapping, Sequence

from headrace.engine.check.finding import Findings, ok, tried, warn
from headrace.engine.check.place import Place
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import parse_manifest, sums_of
from headrace.store.stored_checksum import StoredChecksum, checksum_of
from headrace.stream.checkpoint.header import Shard

_REMEDY = "`headrace push --manifest` writes a manifest beside the weights."


def check_verification(
    place: Place, metadata: Mapping[str, bytes], shards: Sequence[Shard]
) -> Findings[None]:
    """A manifest that fits, or else what the store keeps of one shard, or neither."""
    manifest = metadata.get(MANIFEST_NAME)
    if manifest is not None:
        objects = [(shard.item.name, shard.item.size_bytes) for shard in shards]
        where = place.where
        sums = yield from tried(
            "verification",
            lambda: sums_of(parse_manifest(manifest, f"{where}/{MANIFEST_NAME}"), objects, where),
        )
        if sums is not None:
            yield ok(
                "verification",
                f"{MANIFEST_NAME} has checksums of all weights; every load uses it.",
                by="manifest",
            )
        return
    told = yield from tried("verification", place.pool.map(checksum_of, [shards[0].item])[0])
    if isinstance(told, StoredChecksum):
        yield ok(
            "verification",
            f"There is no {MANIFEST_NAME}, but the store keeps a {told.crc.name} of each object: a load uses it with "
            """--model-loader-extra-config '{"verify": "auto"}'.""",
            by="store",
        )
    elif told is not None:
        yield warn(
            "verification", f"Not verifiable: there is no {MANIFEST_NAME}, and {told}.", _REMEDY, by=None
        )
