"""What an S3 store's error codes and statuses mean, as data.

Codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
In texts: {bucket}, {endpoint}, {region}, {who} asks, {said} is the store's own sentence after a colon, or a full stop;
{told} is that sentence after what we say, where it says more.
"""

from dataclasses import dataclass

from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    ExpiredCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Truncated,
    Unsupported,
    WrongRegion,
)

BUCKET_NAME_REMEDY = "Most stores want 3 to 63 lower-case letters, digits, dots and dashes, with a letter or digit at both ends."


@dataclass(frozen=True, slots=True)
class Meaning:
    """The class of an error, its cause in words and what to do."""

    kind: type[StoreError]
    cause: str
    remedy: str = ""


_DENIED = Meaning(
    AccessDenied,
    "The {who} may not do this.{told}",
    "Allow it s3:ListBucket on the bucket and s3:GetObject on its objects (s3:PutObject to push).",
)
_BAD_SECRET = Meaning(
    BadSignature,
    "The store refuses the signature: the secret key is wrong.",
    "Check {keys.secret_key} (it belongs to {who}).",
)
_SKEWED = Meaning(
    BadSignature, "This machine's clock and the store's differ too much.", "Set the clock (NTP)."
)
_EXPIRED = Meaning(
    ExpiredCredentials,
    "The session token is expired or not valid.",
    "Renew {keys.token}, or unset it.",
)
_REGION = Meaning(
    WrongRegion,
    "The bucket is not in the region {region}.",
    "Set {region_name} to the bucket's region.",
)
_THROTTLED = Meaning(Throttled, "The store asks to slow down.")
_FAILED = Meaning(TransientError, "The store failed{said}")
_ARCHIVED = Meaning(
    Unsupported,
    "The object lies in an archive (Glacier) and cannot be read at once.",
    "Restore it, or upload it again in a storage class that is read at once.",
)
_KEY_SERVICE = Meaning(
    AccessDenied,
    "The key that the object is encrypted with cannot be used{said}",
    "Allow kms:Decrypt on the key (kms:GenerateDataKey too to push), and see that the key is enabled.",
)
_CUSTOMER_KEY = Meaning(
    Unsupported,
    "The object is encrypted with a key of the customer's (SSE-C), which Headrace does not send.",
    "Encrypt it with SSE-S3 or SSE-KMS.",
)

BY_CODE: dict[str, Meaning] = {
    "NoSuchBucket": Meaning(
        NotFound,
        "There is no bucket {bucket} at {endpoint}.",
        "Check the bucket's name and {endpoint_name}, or make the bucket first.",
    ),
    "NoSuchAccessPoint": Meaning(
        NotFound, "There is no access point {bucket}.", "Check its ARN: region, account and name."
    ),
    "InvalidBucketName": Meaning(
        NotFound, "The store takes {bucket} for no bucket's name.", BUCKET_NAME_REMEDY
    ),
    "SignatureDoesNotMatch": _BAD_SECRET,
    "RequestTimeTooSkewed": _SKEWED,
    "RequestExpired": _SKEWED,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "InvalidTokenId": _EXPIRED,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "AllAccessDisabled": Meaning(AccessDenied, "The bucket is closed to everybody{said}", "Ask its owner."),
    "AccountProblem": Meaning(AccessDenied, "The account is not in order{said}", "Ask the store's provider."),
    "NotSignedUp": Meaning(AccessDenied, "The account may not use S3{said}", "Ask the store's provider."),
    "InvalidObjectState": _ARCHIVED,
    "KMS.DisabledException": _KEY_SERVICE,
    "KMS.NotFoundException": _KEY_SERVICE,
    "KMS.InvalidStateException": _KEY_SERVICE,
    "ServerSideEncryptionConfigurationNotFoundError": _CUSTOMER_KEY,
    "SlowDown": _THROTTLED,
    "SlowDownRead": _THROTTLED,
    "SlowDownWrite": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "ServiceUnavailable": _THROTTLED,
    "RequestTimeout": _FAILED,
    "InternalError": _FAILED,
    "EntityTooLarge": Meaning(
        Unsupported, "The store takes no object of this size.", "Split the weights into smaller shards."
    ),
    "KeyTooLongError": Meaning(
        Unsupported,
        "The store takes no key of this length.",
        "Shorten the prefix, or the file's path: 1,024 bytes.",
    ),
    "QuotaExceeded": Meaning(AccessDenied, "The bucket is full{said}", "Make room, or raise its quota."),
    "XMinioStorageFull": Meaning(AccessDenied, "The store is full{said}", "Make room."),
}
UNKNOWN_KEY = Meaning(BadSignature, "The store does not know the {who}.", "Check {keys.access_key}.")
UNKNOWN_KEY_WITH_TOKEN = Meaning(
    BadSignature,
    "The store does not know the {who}.",
    "Check {keys.access_key} and {keys.token}, which must belong together.",
)
ANONYMOUS_DENIED = Meaning(
    AccessDenied,
    "The bucket is not read without credentials, as it was asked to be.",
    "Unset HEADRACE_S3_ANONYMOUS and RUNAI_STREAMER_S3_UNSIGNED, and set AWS_ACCESS_KEY_ID or AWS_PROFILE.",
)
NOT_A_STORE = Meaning(
    BadEndpoint,
    "The endpoint {endpoint} does not answer as an S3 store does.",
    "Check that {endpoint_name} is the store's S3 API (not its web console).",
)
NO_OBJECT = Meaning(NotFound, "There is no such object.", "Check the key; `headrace push` uploads a model.")
REFUSED = Meaning(Unsupported, "The store refuses the request{said}")
BY_STATUS: dict[int, Meaning] = {
    **dict.fromkeys((301, 302, 307, 308), _REGION),
    401: _DENIED,
    403: _DENIED,
    404: NO_OBJECT,
    408: _FAILED,
    416: Meaning(Truncated, "The object is shorter than it was listed.", "Upload it again."),
    429: _THROTTLED,
    503: _THROTTLED,
    **dict.fromkeys((500, 502, 504, 507, 508, 509, 520, 521, 522, 523, 524, 525, 529), _FAILED),
    501: REFUSED,
}
