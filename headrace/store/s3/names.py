"""What a person corrects, by the name under which they gave it: a variable, a profile's entry, a caller's argument."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.store.s3.credentials import origin_of

if TYPE_CHECKING:
    from botocore.credentials import Credentials

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "RUNAI_STREAMER_S3_ENDPOINT")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
PROFILE = "AWS profile"
_IN_VARIABLES = ("explicit", "env")
_IN_FILES = ("shared-credentials-file", "config-file")


@dataclass(frozen=True, slots=True)
class KeyNames:
    """What the two parts of a key and its token are called."""

    access_key: str
    secret_key: str
    token: str


def key_names(
    credentials: "Credentials | None", environ: Mapping[str, str], called: Mapping[str, str]
) -> KeyNames:
    """Where a key stands that a store does not take; where there is none, where it would be set.

    Args:
        called: names in place of variables', as a caller has given what stands in them.
    """
    variables = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    method = "explicit" if credentials is None else credentials.method or ""
    if credentials is None or method in _IN_VARIABLES:
        return KeyNames(*(called.get(name, name) for name in variables))
    origin = origin_of(credentials, environ)
    if method in _IN_FILES:
        return KeyNames(*(f"{name.lower()} in {origin.place}" for name in variables))
    return KeyNames(*[f"what gives the credentials, {origin.place}"] * 3)


def region_name(origins: Mapping[str, str], called: Mapping[str, str]) -> str:
    """What says the region, or may say it."""
    origin = origins["region"]
    return origin if origin in (*REGION_VARIABLES, *called.values()) else REGION_VARIABLES[0]


def endpoint_name(origins: Mapping[str, str], called: Mapping[str, str]) -> str:
    """What says where the store is, or may say it."""
    origin = origins["endpoint"]
    if origin == PROFILE:
        return f"endpoint_url of the {PROFILE}"
    return origin if origin in (*ENDPOINT_VARIABLES, *called.values()) else "AWS_ENDPOINT_URL"
