"""What the name of one object means: the folder that it lies in, as a ModelSource, and its name there."""

import os
from pathlib import Path
from urllib.parse import unquote

from headrace.source.az_uri import AZURE_SCHEMES, azure_place
from headrace.source.bad_source import BadSource
from headrace.source.gs_uri import gs_bucket_and_key
from headrace.source.hf_uri import HubPlace, hub_place, hub_uri
from headrace.source.s3_uri import s3_bucket_and_key
from headrace.source.uri import URI, ModelSource, hub_source, path_of, unknown_scheme, web_source


def parse_object(text: str) -> tuple[ModelSource, str]:
    """Read the name of one object: the folder that it lies in, and its name there.

    What `parse_source` takes, with the object's name at the end. An address on a web server may have a query,
    such as a presigned one; it is kept in the source and never shown.

    Raises:
        BadSource: as `parse_source`, and for what names a folder or, on a file system, a file that does not exist.
    """
    match = URI.fullmatch(text)
    if match is None:
        return _parse_file(text, text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        return _parse_file(path_of(rest, text), text)
    if scheme == "s3":
        bucket, key = s3_bucket_and_key(rest, text)
        folder, name = _split(key, text)
        return ModelSource("s3", bucket, folder, f"s3://{bucket}/{folder}".rstrip("/")), name
    if scheme == "gs":
        bucket, key = gs_bucket_and_key(rest, text)
        folder, name = _split(key, text)
        return ModelSource("gs", bucket, folder, f"gs://{bucket}/{folder}".rstrip("/")), name
    if scheme in AZURE_SCHEMES:
        place = azure_place(rest, text)
        folder, name = _split(place.key, text)
        below = text.removesuffix(name).rstrip("/")
        return ModelSource("az", place.container, folder, below, host=place.host), name
    if scheme == "hf":
        hub = hub_place(rest, text)
        folder, name = _split(hub.path, text)
        below = hub_uri(hub.repository, hub.revision, folder)
        return hub_source(HubPlace(hub.repository, hub.revision, folder), below), name
    if scheme in ("http", "https"):
        source = web_source(text, scheme, keep_slash=True)
        folder, quoted = _split(source.prefix, source.text)
        name = unquote(quoted, errors="surrogateescape")
        if "/" in name or not name.isprintable():
            raise BadSource(
                f"{source.uri} ends in a name that no file can have.", remedy="Name a file of a folder."
            )
        folder_text = f"{scheme}://{source.bucket}/{folder}".rstrip("/")
        return ModelSource(source.scheme, source.bucket, folder, folder_text, source.query), name
    raise unknown_scheme(scheme)


def _split(key: str, text: str) -> tuple[str, str]:
    """Folder and name of a key. Raises BadSource."""
    folder, slash, name = key.rpartition("/")
    if not name:
        raise BadSource(f"{text} names no object.", remedy="Write the object's name at the end.")
    if (slash and folder.strip("/") != folder) or (slash and not folder):
        raise BadSource(
            f"{text} holds an empty name between the folder's slashes and the object.",
            remedy="Write one slash at these places.",
        )
    return folder, name


def _parse_file(path_text: str, text: str) -> tuple[ModelSource, str]:
    try:
        path = Path(path_text).expanduser()
        if path.is_file():
            # The folder's links are followed, the file's own are not: its name counts, not its target's.
            folder = str(path.parent.resolve())
            return ModelSource("file", "", folder, str(path.parent)), path.name
        is_folder, is_link, is_there = path.is_dir(), path.is_symlink(), os.path.lexists(path)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise BadSource(
            f"The file {text:.300} cannot be looked at: {why}.", remedy="Give an existing file."
        ) from None
    if is_folder:
        raise BadSource(f"{text} is a folder.", remedy="Name a file in it.")
    if is_link:
        raise BadSource(
            f"{text:.300} is a link that leads to no file.", remedy="Put the file there, or mend the link."
        )
    if is_there:
        raise BadSource(
            f"{text:.300} is no file, but a pipe, a socket or a device.", remedy="Give an existing file."
        )
    raise BadSource(f"There is no file {text:.300}.", remedy="Give an existing file or s3://bucket/key.")
