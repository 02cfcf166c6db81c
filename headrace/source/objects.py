"""What a listing says of a model's files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object (or file) as the listing describes it; reads are pinned to this version.

    Attributes:
        key: the full key in the bucket, or the absolute path of a file.
        name: the key relative to the model's prefix.
        size_bytes: its size.
        version: what changes when the content does: the ETag without quotes, or a file's identity and times;
            "" where the store gives none.
        modified_s: when it was last written, in seconds since 1970; None where the store does not say.
    """

    key: str
    name: str
    size_bytes: int
    version: str
    modified_s: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies directly under a model's prefix.

    Attributes:
        objects: sorted by name.
        folders: names of the common prefixes below, without their slash.
        broken_links: names of links that lead to nothing; only a folder has them.
    """

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...] = ()
    broken_links: tuple[str, ...] = ()

    def find(self, name: str) -> ObjectInfo | None:
        """The object of that name."""
        return next((item for item in self.objects if item.name == name), None)
