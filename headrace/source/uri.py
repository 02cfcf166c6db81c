"""What a model's name means: an object-store URI or a folder, as a type that is never a bare string."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from headrace.errors import HeadraceError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_YET = {
    "gs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "abfs": "Azure Blob Storage",
    "abfss": "Azure Blob Storage",
    "hf": "the Hugging Face hub",
    "http": "plain HTTP",
    "https": "plain HTTPS",
}


class BadSource(HeadraceError):
    """The model's name cannot be understood or is not supported."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is.

    Attributes:
        scheme: "s3" or "file".
        bucket: the bucket's name; "" for a folder.
        prefix: the key prefix without slashes at its ends ("" is the bucket's root), or the folder's
            absolute path.
        text: what the user wrote.
    """

    scheme: Literal["s3", "file"]
    bucket: str
    prefix: str
    text: str

    @property
    def uri(self) -> str:
        """The canonical name: "s3://bucket/prefix" or an absolute path."""
        if self.scheme == "file":
            return self.prefix
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def uri_of(self, name: str) -> str:
        """The name of one object below the source."""
        return f"{self.uri}/{name}"


def parse_source(text: str) -> ModelSource:
    """Read a model's name.

    `s3://bucket[/prefix]` in any case of the scheme, where slashes at the prefix's ends do not count and those
    inside do (`a//b` is not `a/b`); `file:///path`, `/path`, `./path` and `~/path` for a
    folder, which must exist. A URI never falls back to a hub.

    Raises:
        BadSource: a scheme that is unknown or not supported yet, a URI without a bucket or with . or .. in
            its path, a folder that does not exist.
    """
    if not text.strip():
        raise BadSource("The model's name is empty.", remedy="Give s3://bucket/prefix or a folder.")
    match = _URI.fullmatch(text)
    if match is None:
        return _parse_folder(text, text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise BadSource(f"{text} names no bucket.", remedy="Write s3://bucket/prefix.")
        if "@" in bucket:
            raise BadSource(
                "An s3:// URI may not hold credentials.",
                remedy="Put them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            )
        if not _BUCKET.fullmatch(bucket):
            raise BadSource(
                f"{text} names a bucket with characters that no bucket's name has.",
                remedy="Write s3://bucket/prefix; a bucket's name has letters, digits, dots, dashes and underscores.",
            )
        if not {".", ".."}.isdisjoint(prefix.split("/")):
            raise BadSource(
                f"{text} holds . or .. between slashes, which a key may not: proxies and stores take it for a path.",
                remedy="Write the prefix that is meant; keys have no parent folders.",
            )
        return ModelSource("s3", bucket, prefix.strip("/"), text)
    if scheme == "file":
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise BadSource(f"{text} names another host.", remedy="Write file:///path.")
        return _parse_folder("/" + unquote(path), text)
    if scheme in _NOT_YET:
        raise BadSource(
            f"{scheme}:// ({_NOT_YET[scheme]}) is not supported yet.",
            remedy="Use s3://bucket/prefix or a local folder.",
        )
    raise BadSource(
        f"{scheme}:// is not a scheme that Headrace knows.", remedy="Use s3:// or a local folder."
    )


def _parse_folder(path_text: str, text: str) -> ModelSource:
    try:
        path = Path(path_text).expanduser()
        if path.is_dir():
            return ModelSource("file", "", str(path.resolve()), text)
        is_file = path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of a user who does not exist
        why = getattr(error, "strerror", None) or error
        raise BadSource(
            f"The folder {text:.300} cannot be looked at: {why}.", remedy="Give an existing folder."
        ) from None
    if is_file:
        raise BadSource(
            f"{text} is a file.", remedy="Give the folder that holds config.json and the weights."
        )
    remedy = "Give an existing folder or s3://bucket/prefix."
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        remedy += " Names on the Hugging Face hub are not supported yet."
    raise BadSource(f"There is no folder {text}.", remedy=remedy)
