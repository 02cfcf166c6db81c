"""The two parts of an s3:// URI: a bucket's name or an access point's ARN, and a key.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-usage-examples.html
"""

import re

from headrace.source.bad_source import BadSource

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_ARN = r"(arn:(?:aws|aws-[a-z-]+):s3:[a-z0-9-]+:[0-9]{12}:accesspoint[/:][a-z0-9-]{3,50})(?:/(.*))?"


def s3_bucket_and_key(rest: str, text: str) -> tuple[str, str]:
    """Bucket (or the ARN of an access point, with a colon before its name) and key of what follows s3://.

    Raises BadSource.
    """
    if rest.startswith("arn:"):
        bucket, key = _access_point(rest, text)
    else:
        bucket, _, key = rest.partition("/")
        _check_bucket(bucket, text)
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise BadSource(
            f"{text} holds . or .. between slashes, which a key may not: proxies and stores take it for a path.",
            remedy="Write the prefix that is meant; keys have no parent folders.",
        )
    return bucket, key


def _access_point(rest: str, text: str) -> tuple[str, str]:
    match = re.fullmatch(_ARN, rest, re.ASCII | re.DOTALL)
    if match is None:
        raise BadSource(
            f"{text:.300} is not the ARN of an access point of one region's bucket.",
            remedy="Write s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/prefix, or the access point's alias in "
            "place of a bucket; access points of several regions, of Outposts and of Object Lambda are not read.",
        )
    # Of the two ways to write it the one without a slash: what follows a slash is the key.
    return match[1].replace("accesspoint/", "accesspoint:"), match[2] or ""


def _check_bucket(bucket: str, text: str) -> None:
    if not bucket:
        raise BadSource(f"{text} names no bucket.", remedy="Write s3://bucket/prefix.")
    if "@" in bucket:
        raise BadSource(
            "An s3:// URI may not hold credentials.",
            remedy="Put them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    if not _BUCKET.fullmatch(bucket):
        raise BadSource(
            f"{text} names a bucket with characters that no bucket's name has.",
            remedy="Write s3://bucket/prefix; a bucket's name has letters, digits, dots, dashes and underscores.",
        )
