"""Where the requests for one bucket go: host, path and region, from the resolved settings."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from headrace.store.errors import Unsupported
from headrace.store.s3.kinds import AwsEndpoints

if TYPE_CHECKING:
    from headrace.store.s3.settings import S3Settings

_ARN = r"arn:[a-z-]+:s3:(?P<region>[^:]+):(?P<account>[0-9]+):accesspoint:(?P<name>[a-z0-9-]+)"
# What a host's label may be; https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html
_LABELS = r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?"
_EXPRESS = "--x-s3"


@dataclass(frozen=True, slots=True)
class S3Address:
    """One bucket's.

    Attributes:
        endpoint_url: scheme, host and port of the store in the bucket's region.
        origin: scheme, host and port that requests go to.
        path: what stands before a key: "/" where the bucket is in the host's name, else "/bucket/".
        region: what requests are signed for.
    """

    endpoint_url: str
    origin: str
    path: str
    region: str

    @property
    def netloc(self) -> str:
        """Host and port, as they were written."""
        return urlsplit(self.origin).netloc

    @property
    def addressing(self) -> str:
        """For a person."""
        return "path-style" if self.path != "/" else "virtual host"


def address_of(settings: "S3Settings", bucket: str, found_region: str = "") -> S3Address:
    """The address of a bucket, or of an access point's ARN.

    Args:
        found_region: where the store said that the bucket is; "" where nothing is known.

    Raises:
        Unsupported: a directory bucket, which needs sessions of its own.
    """
    region = found_region or settings.region
    aws = settings.aws
    if bucket.startswith("arn:") and (arn := re.fullmatch(_ARN, bucket, re.ASCII)) is not None:
        region = arn["region"]
        endpoint = _aws_or(settings, region, "s3-accesspoint")
        return _in_host(endpoint, f"{arn['name']}-{arn['account']}", region)
    if aws is not None and bucket.endswith(_EXPRESS):
        raise Unsupported(
            f"s3://{bucket}",
            "This is a directory bucket (S3 Express One Zone), which is read through sessions that Headrace does not make.",
            remedy="Keep the model in a general purpose bucket of the same region, or mount the bucket with Mountpoint "
            "for Amazon S3 and name the folder.",
        )
    endpoint = _aws_or(settings, region, "s3")
    if settings.path_style or not _fits_host(bucket, dots=endpoint.startswith("http:")):
        return S3Address(endpoint, endpoint, f"/{quote(bucket)}/", region)
    return _in_host(endpoint, bucket, region)


def _aws_or(settings: "S3Settings", region: str, service: str) -> str:
    aws: AwsEndpoints | None = settings.aws
    return settings.endpoint_url if aws is None else aws.url(region, service)


def _in_host(endpoint: str, label: str, region: str) -> S3Address:
    scheme, _, netloc = endpoint.partition("://")
    return S3Address(endpoint, f"{scheme}://{label}.{netloc}", "/", region)


def _fits_host(bucket: str, *, dots: bool) -> bool:
    """Whether a bucket's name can be in a host's: with dots no wildcard certificate covers it."""
    return (
        bool(re.fullmatch(_LABELS, bucket, re.ASCII)) and (dots or "." not in bucket) and ".." not in bucket
    )
