"""The parts of hf:// URIs, and which plain names are a model's on the Hugging Face hub.

Grammar: https://huggingface.co/docs/huggingface_hub/package_reference/hf_uris
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from headrace.source.bad_source import BadSource

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_PLAIN = re.compile(rf"({_WORD}/{_WORD})(?:@([^/@]+))?", re.ASCII)
_REPOSITORY = re.compile(rf"{_WORD}/{_WORD}", re.ASCII)
# Names with a slash that the hub itself gives: pull requests and converted files. Others write %2F.
_SPECIAL = re.compile(r"(refs/(?:pr/[0-9]+|convert/[\w.-]+))(?:/(.*))?", re.ASCII | re.DOTALL)
# Git allows more; what is left out would be read in two ways on the way to the hub.
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+=-]{0,250}", re.ASCII)
_OTHER_KINDS = ("datasets", "spaces", "kernels", "buckets")
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_REMEDY = "Write hf://org/name, hf://org/name@revision or hf://org/name@revision/subfolder."


@dataclass(frozen=True, slots=True)
class HubPlace:
    """What such a name names.

    Attributes:
        repository: "org/name".
        revision: a branch, tag or commit; "" for the main branch.
        path: below the repository, without slashes at its ends.
    """

    repository: str
    revision: str
    path: str


def hub_place(rest: str, text: str) -> HubPlace:
    """What the rest of a URI after hf:// names: `[models/]org/name[@revision][/path]`. Raises BadSource."""
    parts = rest.removeprefix("models/").split("/", 2)
    if parts[0] in _OTHER_KINDS:
        raise BadSource(f"{text!r:.300} names one of the hub's {parts[0]}, not a model.", remedy=_REMEDY)
    if "@" in parts[0]:  # it may be a token: nothing is repeated
        raise BadSource(
            "What stands before an @ in the URI is no repository of the hub, by its owner and name.",
            remedy=_REMEDY + " A token goes into HF_TOKEN.",
        )
    name, at, begun = (parts[1] if len(parts) > 1 else "").partition("@")
    repository = f"{parts[0]}/{name}"
    if not _is_repository(repository):
        raise BadSource(
            f"{text!r:.300} does not name a repository as the hub does, by its owner and name.",
            remedy=_REMEDY,
        )
    path = parts[2] if len(parts) > 2 else ""
    revision = ""
    if at:
        after = f"{begun}/{path}" if len(parts) > 2 else begun
        special = _SPECIAL.fullmatch(after)
        revision, path = (special.group(1), special.group(2) or "") if special else (begun, path)
        revision = check_revision(unquote(revision), text)
    path = path.strip("/")
    if path and (
        not {"", ".", ".."}.isdisjoint(path.split("/")) or not path.isprintable() or len(path) > 1_000
    ):
        raise BadSource(
            f"{text!r:.300} holds a path that no file of a repository has.",
            remedy="Write one slash between names; paths have no parent folders.",
        )
    return HubPlace(repository, revision, path)


def plain_hub_name(text: str) -> HubPlace | None:
    """What a name without a scheme names on the hub; None for what can be a path only (./name, /name, a/b/c).

    Raises BadSource for a revision that cannot be one.
    """
    match = _PLAIN.fullmatch(text)
    if match is None or not _is_repository(match.group(1)):
        return None
    revision = match.group(2)
    return HubPlace(match.group(1), check_revision(unquote(revision), text) if revision else "", "")


def hub_uri(repository: str, revision: str, path: str) -> str:
    """The canonical URI."""
    at = f"@{quote(revision, safe='')}" if revision and not _SPECIAL.fullmatch(revision) else ""
    at = at or (f"@{revision}" if revision else "")
    return f"hf://{repository}{at}/{path}".rstrip("/")


def uri_of_hub_page(host: str, path: str) -> str:
    """The hf:// URI of what a page of the hub shows; "" for another address. Its `/resolve/` addresses are no pages.

    Args:
        host, path: of an address, as WebAddress has them.
    """
    words = path.strip("/").split("/")
    if host not in _HUB_HOSTS or len(words) < 2 or not _is_repository("/".join(words[:2])):
        return ""
    repository = "/".join(words[:2])
    if len(words) == 2:
        return hub_uri(repository, "", "") if words[0] not in _OTHER_KINDS else ""
    if words[2] != "tree" or len(words) == 3:
        return ""
    return hub_uri(repository, unquote(words[3]), unquote("/".join(words[4:])))


def _is_repository(name: str) -> bool:
    return _REPOSITORY.fullmatch(name) is not None and not (
        "--" in name or ".." in name or name.endswith(".git")
    )


def check_revision(revision: str, text: str) -> str:
    """The revision that `text` asks for. Raises BadSource where there can be none of this name."""
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith("/"):
        raise BadSource(
            f"{text!r:.300} names a revision that can be none.",
            remedy="After the @ comes a branch, a tag or a commit; a slash in it is written %2F.",
        )
    return revision
