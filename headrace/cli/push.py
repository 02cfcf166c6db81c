"""`headrace push DIR URI`: upload a model folder to an object store."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output import say
from headrace.cli.parser import UsageError
from headrace.cli.table import print_json
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.source.uri import ModelSource
    from headrace.store.s3.settings import S3Settings
    from headrace.store.upload.plan import FolderFiles
    from headrace.store.upload.upload import UploadResult

DESCRIPTION = """\
Upload a model folder to an object store. Files that are there already with the same size and checksum are
skipped, so that an interrupted push goes on where it stopped. Weights go first and config.json last: what can
be served is complete. Files whose names begin with a dot (.git, .cache) are left out, and nothing is deleted
from the store."""
EXAMPLES = """\
examples:
  headrace push ./qwen s3://my-bucket/models/qwen
  headrace push ./qwen s3://new-bucket/qwen --create-bucket
  headrace push ./qwen s3://my-bucket/models/qwen --manifest
  headrace push ./qwen s3://my-bucket/models/qwen --json | jq .bytes_uploaded

The store is found by the usual AWS variables and files: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, AWS_PROFILE and so on."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "push", help="upload a model folder to a bucket", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument(
        "folder", metavar="DIR", type=_folder, help="the folder with config.json and the weights"
    )
    parser.add_argument(
        "uri", metavar="URI", help="where it goes: s3://, gs:// or az://BUCKET/PREFIX, or a folder"
    )
    parser.add_argument(
        "--create-bucket",
        action="store_true",
        help="make the bucket (or folder) if it does not exist (an error otherwise)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="upload the folder even if it is not a model that could be served",
    )
    parser.add_argument(
        "--manifest",
        action="store_true",
        help="put a manifest of the weights' checksums beside them, which every load is then verified with "
        "(a prefix that has one gets a new one anyway)",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object about what was done, and no progress"
    )


def run(args: argparse.Namespace) -> int:
    """Push; the exit code. Raises HeadraceError."""
    destination = parse_destination(args.uri)
    _refuse_inside(args.folder, destination)
    found = read_folder(args.folder, force=args.force)
    if args.manifest:
        from headrace.store.upload.model_check import check_weights

        check_weights(args.folder, found)
    from headrace.cli.interrupts import sigterm_as_interrupt

    show = not (args.quiet or args.json)
    started = time.monotonic()
    with sigterm_as_interrupt():
        result = push_folder(
            found,
            destination,
            create_bucket=args.create_bucket,
            manifest=args.manifest,
            show=show,
        )
    seconds = time.monotonic() - started
    if args.json:
        print_json(_facts(result, destination, seconds))
    elif not args.quiet:
        _tell(result, found, destination, seconds)
    return 0


def _folder(text: str) -> Path:
    """What is pushed: a path, or file:// and a path."""
    from headrace.source.uri import BadSource, parse_folder_to_be

    scheme, separator, _ = text.partition("://")
    if not separator or Path(text).is_dir():
        return Path(text).expanduser()
    if scheme.lower() != "file":
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} is no folder of this machine; `headrace pull URI DIR` brings one here"
        )
    try:
        return Path(parse_folder_to_be(text).prefix)
    except BadSource as error:
        raise argparse.ArgumentTypeError(error.message) from None


def parse_destination(text: str) -> "ModelSource":
    """The bucket and prefix, or the folder, that is pushed to.

    Raises UsageError for what is no URI, BadSource for stores that are not supported (yet).
    """
    from headrace.source.uri import parse_folder_to_be, parse_source
    from headrace.store.upload.uploader import can_be_written

    scheme, separator, _ = text.partition("://")
    if scheme.lower() == "file" if separator else text.startswith(("/", "./", "../", "~")):
        return parse_folder_to_be(text)
    if not separator:  # a forgotten scheme makes no folder
        raise UsageError(
            f"{text!r} is not the URI of an object store.",
            remedy="Write s3://BUCKET/PREFIX, or ./FOLDER for a folder.",
        )
    source = parse_source(text)
    if not can_be_written(source):
        raise UsageError(
            f"{scheme.lower()}:// can be read from, not pushed to.", remedy="Write s3://BUCKET/PREFIX."
        )
    return source


def _refuse_inside(folder: Path, destination: "ModelSource") -> None:
    """A folder below what is pushed would be pushed into itself the next time."""
    if destination.scheme == "file" and folder.resolve() in Path(destination.prefix).parents:
        raise UsageError(
            f"{destination.uri} lies in the folder that is pushed.", remedy="Name a place outside of it."
        )


def read_folder(folder: Path, *, force: bool = False) -> "FolderFiles":
    """The files to upload.

    Args:
        force: take the folder as it is.

    Raises NotAModel if it holds no model that could be served; HeadraceError if it cannot be read.
    """
    from headrace.store.upload.plan import find_files

    if not folder.is_dir():
        raise HeadraceError(
            f"{folder} is {'a file' if folder.exists() else 'not there'}.",
            remedy="Give the folder that holds config.json and the weights.",
        )
    try:
        found = find_files(folder)
        if not force:
            from headrace.store.upload.model_check import check_model

            check_model(folder, found)
    except OSError as error:
        raise HeadraceError(
            f"{error.filename or folder} cannot be read: {error.strerror}.", remedy="Check its permissions."
        ) from None
    if not found.files:
        raise HeadraceError(f"{folder} holds no file to upload.", remedy="Check the folder's name.")
    return found


def push_folder(
    found: "FolderFiles",
    destination: "ModelSource",
    settings: "S3Settings | None" = None,
    *,
    create_bucket: bool,
    manifest: bool = False,
    show: bool,
) -> "UploadResult":
    """Upload, with progress on stderr if `show`.

    Args: settings: S3's, where they are not those of this process's environment.

    Raises HeadraceError.
    """
    from headrace.store.upload.upload import upload_files

    total = sum(file.size_bytes for file in found.files)
    with _progress(total, show) as on_bytes:
        return upload_files(
            found.files,
            destination,
            settings,
            create_bucket=create_bucket,
            manifest=manifest,
            on_bytes=on_bytes,
        )


def _progress(total_bytes: int, show: bool) -> AbstractContextManager[Callable[[int], None]]:
    if not show:
        return nullcontext(lambda _count: None)
    from headrace.cli.progress import transfer_progress

    return transfer_progress(total_bytes, "pushing", sys.stderr)


def _facts(result: "UploadResult", destination: "ModelSource", seconds: float) -> dict[str, Any]:
    return {
        "uri": destination.uri,
        "uploaded": result.uploaded,
        "skipped": result.skipped,
        "bytes_uploaded": result.bytes_uploaded,
        "bytes_skipped": result.bytes_skipped,
        "only_in_store": result.only_in_store,
        "bucket_created": result.bucket_created,
        "seconds": round(seconds, 3),
    }


def _tell(result: "UploadResult", found: "FolderFiles", destination: "ModelSource", seconds: float) -> None:
    from headrace.cli.progress import decimal_size

    uploaded, skipped = len(result.uploaded), len(result.skipped)
    say(
        f"{destination.uri}: {uploaded} uploaded ({decimal_size(result.bytes_uploaded)}), "
        f"{skipped} there already ({decimal_size(result.bytes_skipped)}), {seconds:.1f} s."
    )
    if result.bucket_created:
        made = f"the bucket {destination.bucket}" if destination.bucket else f"the folder {destination.uri}"
        say(f"Made {made}.")
    if found.left_out:
        say(f"Left out: {_shortened(found.left_out)}.")
    if result.only_in_store:
        say(f"Also there, not in the folder, and left alone: {_shortened(result.only_in_store)}.")
    say(f"Serve it: headrace serve {shlex.quote(destination.uri)}")


def _shortened(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
