"""The parts of az://, abfs:// and abfss:// URIs.

Rules: https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
"""

import re
from dataclasses import dataclass

from headrace.source.bad_source import BadSource

AZURE_SCHEMES = ("az", "abfs", "abfss")
# Looser than Azure's rule in length, so that what is refused is refused by the store, in its words.
_CONTAINER = re.compile(r"\$root|\$web|\$logs|[a-z0-9][a-z0-9-]*", re.ASCII)
# account[-secondary].[zone.](blob|dfs).cloud: an account's name has only small letters and digits.
_HOST = re.compile(
    r"([a-z0-9]+(?:-secondary)?(?:\.z[0-9]+)?)\.(?:blob|dfs)\.([a-z0-9-]+(?:\.[a-z0-9-]+)+)", re.ASCII
)
_SIGNATURE = re.compile(r"[?&]sig=|[?;]sharedaccesssignature=", re.IGNORECASE)
_KEY_CHARACTERS = 1024
_REMEDY = (
    "Write az://container/prefix, az://account.blob.core.windows.net/container/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix."
)


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """What such a URI names.

    Attributes:
        host: of the account's blob service, "" where the URI leaves the account to the environment.
    """

    host: str
    container: str
    key: str


def azure_place(rest: str, text: str) -> AzurePlace:
    """What the rest of a URI after its scheme names.

    `container/key`, `account.blob.core.windows.net/container/key` and `container@account.dfs.core.windows.net/key`,
    whose host becomes that of the blob service: both serve the same objects.

    Raises BadSource.
    """
    if _SIGNATURE.search(rest):  # nothing of it is repeated
        raise BadSource(
            "The URI of an Azure container may not hold a shared access signature.",
            remedy="Put it into AZURE_STORAGE_SAS_TOKEN, and name the container without it.",
        )
    first, _, key = rest.partition("/")
    container, at, host = first.rpartition("@")
    if at and (
        ":" in container or not _CONTAINER.fullmatch(container)
    ):  # it may be a key: nothing is repeated
        raise BadSource(
            "What stands before the @ of the URI is no container's name.",
            remedy=_REMEDY + " Keys go into AZURE_STORAGE_ACCOUNT_KEY.",
        )
    if not at and "." in first:
        host = first
        container, _, key = key.partition("/")
    elif not at:
        container, host = first, ""
    if not container:
        raise BadSource(f"{text} names no container.", remedy=_REMEDY)
    if not _CONTAINER.fullmatch(container):
        raise BadSource(
            f"{text} names a container with characters that no container's name has.",
            remedy="A container's name has lower-case letters, digits and dashes. " + _REMEDY,
        )
    _check_key(key, text)
    return AzurePlace(_blob_host(host, text) if host else "", container, key)


def _blob_host(host: str, text: str) -> str:
    match = _HOST.fullmatch(host.lower())
    if match is None:
        raise BadSource(
            f"{text} names {host:.200}, which is not the host of a storage account.",
            remedy=_REMEDY + " An endpoint of another kind goes into AZURE_STORAGE_ENDPOINT.",
        )
    return f"{match.group(1)}.blob.{match.group(2)}"


def _check_key(key: str, text: str) -> None:
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise BadSource(
            f"{text} holds . or .. between slashes, which a key may not: the store takes it for a path.",
            remedy="Write the prefix that is meant; keys have no parent folders.",
        )
    if "\n" in key or "\r" in key or len(key) > _KEY_CHARACTERS:
        raise BadSource(
            f"{text!r:.200} holds a line break or is too long: no object has such a name.",
            remedy=f"Name a prefix of at most {_KEY_CHARACTERS} characters in one line.",
        )
