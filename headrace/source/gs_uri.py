"""The two parts of a gs:// URI. Rules: https://cloud.google.com/storage/docs/buckets#naming and .../docs/objects#naming"""

import re

from headrace.source.bad_source import BadSource

# Looser than Google's rule in length, so that what is refused is refused by the store, in its words.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
_KEY_BYTES = 1024


def gs_bucket_and_key(rest: str, text: str) -> tuple[str, str]:
    """Bucket and key of what follows gs://. Raises BadSource."""
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise BadSource(f"{text} names no bucket.", remedy="Write gs://bucket/prefix.")
    if "@" in bucket:
        raise BadSource(
            "A gs:// URI may not hold credentials.",
            remedy="Name a credential file in GOOGLE_APPLICATION_CREDENTIALS.",
        )
    if not _BUCKET.fullmatch(bucket):
        raise BadSource(
            f"{text} names a bucket with characters that no bucket's name has.",
            remedy="Write gs://bucket/prefix; a bucket's name has lower-case letters, digits, dots, dashes and "
            "underscores.",
        )
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise BadSource(
            f"{text} holds . or .. between slashes, which a key may not: proxies and tools take it for a path.",
            remedy="Write the prefix that is meant; keys have no parent folders.",
        )
    if "\n" in key or "\r" in key or len(key.encode(errors="surrogateescape")) > _KEY_BYTES:
        raise BadSource(
            f"{text!r:.200} holds a line break or is too long: no object has such a name.",
            remedy=f"Name a prefix of at most {_KEY_BYTES} bytes in one line.",
        )
    return bucket, key
