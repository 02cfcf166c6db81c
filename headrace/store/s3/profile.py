"""What AWS's files say of the store: the named profile, or the default one, read by botocore."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.store.errors import NoCredentials

if TYPE_CHECKING:
    from botocore.session import Session

_TOP = ("region", "endpoint_url", "ca_bundle", "use_dualstack_endpoint", "use_fips_endpoint",
        "ignore_configured_endpoint_urls")  # fmt: skip
_IN_S3 = ("addressing_style", "use_dualstack_endpoint")


def names_profile(environ: Mapping[str, str]) -> bool:
    """Whether a variable names a profile."""
    return bool(environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE"))


def has_files(environ: Mapping[str, str]) -> bool:
    """Whether there are AWS files to read."""
    return any(os.path.isfile(path) for path in file_paths(environ))  # noqa: PTH113


def file_paths(environ: Mapping[str, str]) -> tuple[str, str]:
    """Where the config and the credentials file are, if they are."""
    config = environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    return os.path.expanduser(config), os.path.expanduser(credentials)  # noqa: PTH111


def new_session() -> "Session":
    """A session that has found nothing yet."""
    from botocore.session import Session

    return Session()  # reads AWS_PROFILE and the files' places from the process's own environment


def read_profile() -> dict[str, str]:
    """The settings of the named (or default) profile that matter here; its service section's endpoint wins.

    https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html

    Raises:
        NoCredentials: the profile that is named does not exist, or the files cannot be read.
    """
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    session = new_session()
    try:
        scoped: dict[str, Any] = session.get_scoped_config()
        services: dict[str, Any] = session.full_config.get("services", {})
    except ProfileNotFound as error:
        raise NoCredentials(
            "AWS_PROFILE",
            f"The profile that is named does not exist: {error}.",
            remedy="Name a profile of ~/.aws/config or unset AWS_PROFILE.",
        ) from None
    except BotoCoreError as error:
        raise NoCredentials(
            "AWS_CONFIG_FILE", f"AWS's files could not be read: {error}", remedy="Correct the file."
        ) from None
    found = {name: scoped.get(name) for name in _TOP}
    if isinstance(own := scoped.get("s3"), dict):
        found |= {name: own[name] for name in _IN_S3 if name in own}
    section = services.get(str(scoped.get("services")), {}).get("s3", {})
    if isinstance(section, dict) and section.get("endpoint_url"):
        found["endpoint_url"] = section["endpoint_url"]
    return {name: value.strip() for name, value in found.items() if isinstance(value, str)}
