"""Copies of the files beside the weights, for programs that want a folder: list_safetensors and pull_files."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from headrace.errors import HeadraceError, printable
from headrace.source.objects import ObjectInfo
from headrace.source.uri import BadSource, ModelSource, parse_source
from headrace.store.base import ListsBelow, Reader, Store
from headrace.stream.checkpoint.headers import ReaderPool, list_model
from headrace.stream.checkpoint.model_listing import list_all_below
from headrace.stream.library.arguments import path_text, texts
from headrace.stream.library.credentials import Places
from headrace.stream.library.opening import SAFETENSORS_SUFFIX
from headrace.stream.library.several_stores import SeveralStores
from headrace.stream.pulling.pulled_file import fetch_to
from headrace.stream.pulling.record import RECORD_NAME, PullRecord
from headrace.stream.pulling.writing import destination, writing_to

_AT_ONCE = 8
_LEAVE_OUT = "Leave it out with --exclude (ignore_pattern in the library), or remove it from the bucket."
_END_S = 1.0  # how long threads may take to leave the folder alone when a pull has failed


class BadKey(HeadraceError):
    """A key that cannot be the path of a file below the destination."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One object, the place that it lies in, and its path below the prefix that was asked for."""

    store: Store
    item: ObjectInfo
    path: str


def list_safetensors(path: str | os.PathLike[str], s3_credentials: object | None = None) -> list[str]:
    """The .safetensors objects directly under a prefix (or in a folder), as URIs or paths, sorted.

    Raises:
        BadSource: a name that cannot be understood.
        StoreError: it could not be listed.
    """
    store = Places(s3_credentials).open(parse_source(path_text(path)))
    listing = list_model(store)
    return [
        store.source.uri_of(item.name) for item in listing.objects if item.name.endswith(SAFETENSORS_SUFFIX)
    ]


def pull_files(
    model_path: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    allow_pattern: Sequence[str] | str | None = None,
    ignore_pattern: Sequence[str] | str | None = None,
    s3_credentials: object | None = None,
) -> None:
    """Copy what lies under a prefix, in all depths, to a folder.

    A file that was pulled before and has not changed is not fetched again, one that was cut off goes on where it
    stopped, and each appears under its name when it is whole. Patterns are the shell's, and `*` matches slashes
    too; what fits the path below the prefix, or the whole key, counts.

    Args:
        dst: a folder; made where there is none.
        allow_pattern: only what fits one of them (or it, where it is one text); None is everything.
        ignore_pattern: nothing that fits one of them.
        s3_credentials: S3Credentials, or any object with its fields.

    Raises:
        BadKey: a key that would lead out of `dst`; nothing is written then.
        HeadraceError: names and stores as with list_safetensors.
        CannotWrite: the folder, or a file in it, cannot be written.
    """
    folder = destination(dst)
    allow, ignore = patterns(allow_pattern, "allow_pattern"), patterns(ignore_pattern, "ignore_pattern")
    pull_found(find_files(model_path, s3_credentials), folder, allow, ignore)


def patterns(given: Sequence[str] | str | None, name: str) -> list[str] | None:
    """Patterns as a list; one text is one of them. Raises BadSetting, with the argument's name."""
    if given is None:
        return None
    return [given] if isinstance(given, str) else texts(given, name)


def find_files(model_path: str | os.PathLike[str], s3_credentials: object | None) -> tuple[FoundFile, ...]:
    """All that lies under a prefix, in all depths, but for records of earlier pulls. Raises as pull_files."""
    store = Places(s3_credentials).open(parse_source(path_text(model_path)))
    below = list_all_below(store) if isinstance(store, ListsBelow) else ()
    # A plain web server knows no folders; elsewhere an empty place is an error that says what is there instead.
    items = below or list_model(store).objects
    return tuple(
        FoundFile(store, item, item.name) for item in items if item.name.rpartition("/")[2] != RECORD_NAME
    )


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did.

    Attributes:
        fetched, current: paths of files that were fetched, and of those that lay there already.
    """

    fetched: tuple[str, ...]
    current: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Who wants to know, and to look at what comes.

    Attributes:
        begin: told which files are going to be fetched.
        on_bytes: told how many more bytes are there, from any thread; bytes of an earlier try count when it goes on.
        prove: see fetch_to.
    """

    begin: Callable[[Sequence[FoundFile]], None] = lambda _files: None
    on_bytes: Callable[[int], None] = lambda _count: None
    prove: Callable[[FoundFile, Path], None] | None = None


def pull_found(
    found: Sequence[FoundFile],
    dst: Path,
    allow: Sequence[str] | None,
    ignore: Sequence[str] | None,
    watch: Watch = Watch(),
) -> Pulled:
    """Bring what was found, and is wanted, to a folder. Raises as pull_files."""
    chosen = [file for file in found if _is_wanted(file, allow, ignore)]
    for source in {file.store.source for file in chosen}:
        _refuse_inside(dst, source)
    for file in chosen:
        _check_path(file.path, file.store.source.uri_of(file.item.name))
    _refuse_files_that_are_folders(chosen)
    with writing_to(dst):
        record = PullRecord.open(dst)
        return _pull(chosen, record, watch)


def _pull(chosen: Sequence[FoundFile], record: PullRecord, watch: Watch) -> Pulled:
    missing = [file for file in chosen if not record.is_current(file.path, file.item)]
    watch.begin(missing)
    several = SeveralStores([(file.store, file.item) for file in missing])
    pool = ReaderPool(several, _AT_ONCE)
    try:
        waits = [
            pool.map(partial(_fetch, file=file, record=record, watch=watch), [item])[0]
            for file, item in zip(missing, several.items, strict=True)
        ]
        for wait in waits:
            wait()
    except BaseException:
        pool.abort(wait_s=_END_S)
        raise
    for reader in pool.take_readers():
        reader.close()
    fetched = dict.fromkeys(file.path for file in missing)
    return Pulled(tuple(fetched), tuple(file.path for file in chosen if file.path not in fetched))


def _fetch(reader: Reader, item: ObjectInfo, file: FoundFile, record: PullRecord, watch: Watch) -> None:
    known = 0

    def on_position(at: int) -> None:
        nonlocal known
        watch.on_bytes(at - known)
        known = at

    path, prove = record.folder / file.path, watch.prove
    with writing_to(path):
        fetch_to(reader, item, path, on_position, None if prove is None else partial(prove, file))
        # At once: what another file's failure, or a person, ends here is not fetched again.
        record.add(file.path, file.item)


def _is_wanted(file: FoundFile, allow: Sequence[str] | None, ignore: Sequence[str] | None) -> bool:
    def fits(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in (file.path, file.item.key) for pattern in patterns)

    return (allow is None or fits(allow)) and not (ignore is not None and fits(ignore))


def _refuse_inside(dst: Path, source: ModelSource) -> None:
    """Raise BadSource for a folder that is pulled into itself: the next pull would bring what this one has."""
    if source.scheme == "file" and Path(source.prefix) in (dst, *dst.parents):
        raise BadSource(
            f"{dst} lies in what is pulled, {source.uri}.", remedy="Pull to a folder outside of it."
        )


def _check_path(path: str, uri: str) -> None:
    """Raise BadKey for what is no path of a file below the destination, or would hide our own record."""
    parts = path.split("/")
    if not {"", ".", "..", RECORD_NAME}.isdisjoint(parts) or "\0" in path or "\\" in path:
        raise BadKey(
            f"{uri} has a key that cannot be a file's path below a folder.",
            remedy=_LEAVE_OUT,
        )


def _refuse_files_that_are_folders(chosen: Sequence[FoundFile]) -> None:
    """Raise BadKey where one key would be the folder of another: stores keep both, a file system cannot.

    The same where two names are one, as of local files whose names are not UTF-8.
    """
    paths = {file.path: file for file in chosen}
    if len(paths) < len(chosen):
        twice, _ = Counter(file.path for file in chosen).most_common(1)[0]
        raise BadKey(f"Two files would be called {printable(twice, keep='')}.", remedy=_LEAVE_OUT)
    for path in paths:
        above = path
        while above := above.rpartition("/")[0]:
            if above in paths:
                file = paths[above]
                raise BadKey(
                    f"{file.store.source.uri_of(file.item.name)} cannot be a file: {path} lies below it.",
                    remedy=_LEAVE_OUT,
                )
