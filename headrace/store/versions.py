"""What tells one version of an object from another: entity tags and times of the last change."""

from datetime import UTC
from email.utils import parsedate_to_datetime


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
