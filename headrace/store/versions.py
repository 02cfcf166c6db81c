"""What tells one version of an object from another: entity tags and times of the last change."""

import logging
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from headrace.source.objects import Listing

_logger = logging.getLogger(__name__)


def normal_etag(etag: str) -> str:
    """The tag without quotes; a weak one keeps its W/ mark."""
    etag = etag.strip().replace("&quot;", '"')
    weak = etag.startswith("W/")
    return ("W/" if weak else "") + etag.removeprefix("W/").strip('"')


def is_weak(version: str) -> bool:
    """Whether a normal ETag does not promise that the bytes are the same."""
    return version.startswith("W/")


def http_date_s(text: str) -> int | None:
    """An HTTP date in seconds since 1970; None for what is none."""
    try:
        moment = parsedate_to_datetime(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def version_text(size_bytes: int | None, version: str, modified_s: int | None) -> str:
    """What is known of a version, for a message: size, ETag and time of the last change."""
    facts = [
        f"{size_bytes:,} bytes" if size_bytes is not None else "",
        f"ETag {version:.80}" if version else "",
        f"written {utc_text(modified_s)}" if modified_s is not None else "",
    ]
    return ", ".join(fact for fact in facts if fact) or "something else"


def utc_text(seconds: float, *, fraction: bool = False) -> str:
    """A time for a message, with microseconds if wanted; one that no calendar has stays a number."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fraction else "%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def warn_of_weak_versions(uri: str, listing: Listing) -> None:
    """Say for which objects nothing but size and time tells whether they are replaced."""
    weak = [item.name for item in listing.objects if not item.version or is_weak(item.version)]
    if weak:
        _logger.warning(
            "%s: the store gives no strong ETag for %s%s: only size and time of the last change tell "
            "whether they are replaced during the load.",
            uri,
            ", ".join(weak[:3]),
            f" and {len(weak) - 3} more" if len(weak) > 3 else "",
        )
