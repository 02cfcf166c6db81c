"""What a model's name means: an object-store URI or a folder, as a type that is never a bare string."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from headrace.source.az_uri import AZURE_SCHEMES, azure_place
from headrace.source.bad_source import BadSource as BadSource
from headrace.source.gs_uri import gs_bucket_and_key
from headrace.source.hf_uri import (
    HubPlace,
    check_revision,
    hub_place,
    hub_uri,
    plain_hub_name,
    uri_of_hub_page,
)
from headrace.source.s3_uri import s3_bucket_and_key
from headrace.source.web_address import web_address

_SCHEMES = ("s3", "gs", *AZURE_SCHEMES, "hf", "http", "https", "file")
# What a shell, a copy or a path library has made of a URI: a blank before it, or a slash too few.
_NEARLY_URI = re.compile(r"\s*([A-Za-z0-9]+)(:/?|//|://)(?!/)(.*)", re.DOTALL)
URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is.

    Attributes:
        scheme: "s3", "gs", "az" (abfs:// and abfss:// are it too), "hf", "http", "https" or "file".
        bucket: the bucket's name; "org/name" on the hub; host and port of a web server, in lower case and without
            the scheme's own port; "" for a folder.
        prefix: the key prefix without slashes at its ends ("" is the bucket's root), or the folder's
            absolute path. For a web server the path, percent-encoded.
        text: what the user wrote, without a query.
        query: what follows the question mark of one web object's address. It may be a signature: it is sent
            and never shown.
        host: of az:// the host of the account's blob service, "" where the environment says which account.
        revision: of hf:// the branch, tag or commit, "" for the main branch.
    """

    scheme: Literal["s3", "gs", "az", "hf", "file", "http", "https"]
    bucket: str
    prefix: str
    text: str
    query: str = field(default="", repr=False)
    host: str = ""
    revision: str = ""

    @property
    def is_web(self) -> bool:
        """Whether it is a plain web server, without listings."""
        return self.scheme in ("http", "https")

    @property
    def uri(self) -> str:
        """The canonical name: "s3://bucket/prefix", "https://host/path" or an absolute path."""
        if self.scheme == "file":
            return self.prefix
        if self.scheme == "hf":
            return hub_uri(self.bucket, self.revision, self.prefix)
        host = f"{self.host}/" if self.host else ""
        return f"{self.scheme}://{host}{self.bucket}/{self.prefix}".rstrip("/")

    def uri_of(self, name: str) -> str:
        """The name of one object below the source."""
        return f"{self.uri}/{quote(name) if self.is_web else name}"


def parse_source(text: str) -> ModelSource:
    """Read a model's name.

    `s3://bucket[/prefix]`, `gs://bucket[/prefix]` and what `azure_place` takes in any case of the scheme, where slashes at the prefix's
    ends do not count and those inside do (`a//b` is not `a/b`); `http(s)://host[:port]/path`, without a query;
    `file:///path`, `/path`, `./path` and `~/path` for a folder, which must exist; what `hub_place` takes, and a plain
    `org/name[@revision]` that is no folder, for the Hugging Face hub. A URI never falls back to it.

    Raises:
        BadSource: a scheme that is unknown, a URI without a bucket or host or with . or
            .. in its path, a folder that does not exist.
    """
    if not text.strip():
        raise BadSource("The model's name is empty.", remedy="Give s3://bucket/prefix or a folder.")
    match = URI.fullmatch(text)
    if match is None:
        plain = plain_hub_name(text)
        _refuse_nearly_uri(text)
        if plain is not None and _is_nothing(text):
            return hub_source(plain, text)
        return _parse_folder(text, text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "s3":
        bucket, prefix = s3_bucket_and_key(rest, text)
        return ModelSource("s3", bucket, prefix.strip("/"), text)
    if scheme == "gs":
        bucket, prefix = gs_bucket_and_key(rest, text)
        return ModelSource("gs", bucket, prefix.strip("/"), text)
    if scheme in AZURE_SCHEMES:
        place = azure_place(rest, text)
        return ModelSource("az", place.container, place.key.strip("/"), text, host=place.host)
    if scheme == "hf":
        return hub_source(hub_place(rest, text), text)
    if scheme in ("http", "https"):
        source = web_source(text, scheme)
        if source.query:
            raise BadSource(
                f"{source.uri} is followed by a query, which can belong to one object only.",
                remedy="Name the folder without it; a server that asks who you are gets HEADRACE_HTTP_TOKEN.",
            )
        return source
    if scheme == "file":
        return _parse_folder(path_of(rest, text), text)
    raise unknown_scheme(scheme)


def at_revision(text: str, revision: str) -> str:
    """The name of the same model at a branch, tag or commit, as the caller wrote its name.

    Raises:
        BadSource: as `parse_source`; what is no model on the Hugging Face hub; a revision that cannot be one, or is
            another than the name's own.
    """
    source = parse_source(text)
    if source.scheme != "hf":
        raise BadSource(
            f"{text:.300} is no model on the Hugging Face hub, and has no revision {revision!r:.100}.",
            remedy="Name the prefix or the folder of the version that is meant."
            if URI.fullmatch(text) or plain_hub_name(text) is None
            else f"There is a folder of that name here: write hf://{text} for the hub's model.",
        )
    check_revision(revision, text)
    if source.revision:
        if source.revision != revision:
            raise BadSource(
                f"{text:.300} names the revision {source.revision}, and {revision} is asked for.",
                remedy="Name one of them.",
            )
        return text
    if plain_hub_name(text) is not None:
        return f"{text}@{quote(revision, safe='')}"
    return hub_uri(source.bucket, revision, source.prefix)


def parse_folder_to_be(text: str) -> ModelSource:
    """Read the name of a folder that may still have to be made: what `parse_source` takes for one. Raises BadSource."""
    match = URI.fullmatch(text)
    path_text = path_of(match.group(2), text) if match else text
    try:
        return ModelSource("file", "", str(Path(path_text).expanduser().resolve()), text)
    except (OSError, RuntimeError, ValueError) as error:
        raise BadSource(
            f"No folder can be at {text!r:.300}: {error}.", remedy="Give another folder."
        ) from None


def unknown_scheme(scheme: str) -> BadSource:
    """The error for a scheme that is none of ours."""
    return BadSource(
        f"{scheme}:// is not a scheme that Headrace knows.",
        remedy="Use s3://, gs://, az://, hf://, https:// or a local folder.",
    )


def web_source(text: str, scheme: str, *, keep_slash: bool = False) -> ModelSource:
    """An address on a web server, with its query; `keep_slash` keeps those at the path's end. Raises BadSource."""
    address = web_address(text)
    if isinstance(address, str):
        # Nothing of the address is repeated: what is wrong with it may be that it holds a secret.
        raise BadSource(
            f"The {scheme}:// address cannot be used: {address}.",
            remedy=f"Write {scheme}://host/path/; who asks is said in HEADRACE_HTTP_TOKEN.",
        )
    if uri := uri_of_hub_page(address.host, address.path):
        raise BadSource(
            f"{address.shown} is a page about a model, not the folder of its files.", remedy=f"Write {uri}."
        )
    path = address.path.removeprefix("/") if keep_slash else address.path.strip("/")
    shown = f"{scheme}://{address.host}{address.path}"
    return ModelSource("https" if scheme == "https" else "http", address.host, path, shown, address.query)


def path_of(rest: str, text: str) -> str:
    """The path of what follows file://. Raises BadSource."""
    host, _, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise BadSource(f"{text} names another host.", remedy="Write file:///path.")
    return "/" + unquote(path)


def _parse_folder(path_text: str, text: str) -> ModelSource:
    try:
        path = Path(path_text).expanduser()
        if path.is_dir():
            return ModelSource("file", "", str(path.resolve()), text)
        is_file = path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of a user who does not exist
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise BadSource(
            f"The folder {text:.300} cannot be looked at: {why}.", remedy="Give an existing folder."
        ) from None
    if is_file:
        raise BadSource(
            f"{text} is a file.", remedy="Give the folder that holds config.json and the weights."
        )
    raise BadSource(
        f"There is no folder {text}.",
        remedy="Give an existing folder, s3://bucket/prefix, or org/name for a model on the Hugging Face hub.",
    )


def _refuse_nearly_uri(text: str) -> None:
    """Raise BadSource for a misspelt URI, which would be taken for a folder."""
    match = _NEARLY_URI.match(text)
    if match is None or match.group(1).lower() not in _SCHEMES or not _is_nothing(text):
        return
    scheme, rest = match.group(1).lower(), match.group(3)
    start = "file:///" if scheme == "file" else f"{scheme}://"
    if {"@", "?"} & set(rest):  # before the one and after the other there may be a secret
        raise BadSource(f"A name that begins with {scheme}: is no URI.", remedy=f"Write {start}….")
    raise BadSource(f"{text!r:.300} is neither a folder nor a URI.", remedy=f"Write {start}{rest:.250}.")


def _is_nothing(path: str) -> bool:
    """Whether there is surely nothing of this name: a link that leads nowhere, or what cannot be looked at, is."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def hub_source(place: HubPlace, text: str) -> ModelSource:
    """A place on the Hugging Face hub that was written so."""
    return ModelSource("hf", place.repository, place.path, text, revision=place.revision)
