"""Is a folder a model that could be served? Only as much of it is read as tells that its files are whole."""

import json
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.source.files import CONFIG_NAME, INDEX_NAME, BadModelFiles
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.weight_files import choose_weights
from headrace.store.upload.manifest import is_weight
from headrace.store.upload.plan import FolderFiles

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_FORCE = "--force uploads the folder as it is."  # a flag of `headrace push`


class NotAModel(HeadraceError):
    """The folder does not hold a model that could be served."""


def check_model(folder: Path, found: FolderFiles) -> None:
    """Refuse what `headrace serve` would refuse for its files. Raises NotAModel; OSError where one cannot be read."""
    names = {file.name for file in found.files}
    for name in found.left_out:
        counts = name in (CONFIG_NAME, INDEX_NAME) or name.endswith(".safetensors")
        if counts and "/" not in name and not name.startswith("."):
            raise NotAModel(
                f"{folder}/{name} is a link that leads nowhere, or no regular file.",
                remedy=f"Put the file there first; {_FORCE}",
            )
    for what, there in (
        (CONFIG_NAME, CONFIG_NAME in names),
        ("safetensors files", any(name.endswith(".safetensors") for name in names if "/" not in name)),
    ):
        if not there:
            raise NotAModel(
                f"{folder} holds no {what}, so it is not a model that could be served.",
                remedy=f"Give the folder of a Hugging Face checkpoint with safetensors; {_FORCE}",
            )
    listing = Listing(
        tuple(
            ObjectInfo(str(file.path), file.name, file.size_bytes, "")
            for file in found.files
            if "/" not in file.name
        )
    )
    index = (folder / INDEX_NAME).read_bytes() if INDEX_NAME in names else None
    try:
        weights = choose_weights(listing, str(folder), index)
    except BadModelFiles as error:
        raise NotAModel(error.message, remedy=f"Complete the folder first; {_FORCE}") from None
    for item in weights:
        _check_header(Path(item.key), item.size_bytes)


def _check_header(path: Path, size_bytes: int) -> None:
    """The cheap proof that a file is whole: the header says how long it is."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if start == b"version ":
            raise NotAModel(
                f"{path} is a Git LFS pointer, not the weights.", remedy=f"Run `git lfs pull` first; {_FORCE}"
            )
        header = file.read(length) if 0 < length <= min(size_bytes - 8, _MAX_HEADER_BYTES) else b""
    try:
        ends = [
            entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__"
        ]
        whole = 8 + length + max(ends, default=0) == size_bytes
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        whole = False
    if not whole:
        raise NotAModel(
            f"{path} is not a whole safetensors file: its {size_bytes:,} bytes do not fit its header.",
            remedy=f"Download it again; {_FORCE}",
        )


def check_weights(folder: Path, found: FolderFiles) -> None:
    """What --force lets pass may have nothing that a manifest could be of. Raises NotAModel."""
    if not any(is_weight(file.name) for file in found.files):
        raise NotAModel(
            f"{folder} holds no safetensors files, so there is nothing to make a manifest of.",
            remedy="Leave --manifest away, or give the folder of the weights.",
        )
