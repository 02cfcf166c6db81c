"""Where an S3 store is and who asks: one resolver for listing, metadata, weights and upload.

Settings come from the usual AWS variables first, then from AWS's files (read by botocore). Credentials
come from variables or from botocore's whole chain, which renews them.
"""

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint, NoCredentials, WrongRegion
from headrace.store.trust import Trust, resolve_trust

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials
    from botocore.session import Session

_renewing = threading.Lock()
# botocore's rule, so that serve and push agree: a region is a label of a host's name.
_REGION = re.compile(r"(?![0-9]+$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)
_ENDPOINT_REMEDY = "Set AWS_ENDPOINT_URL to http://HOST:PORT or https://HOST[:PORT]."


@dataclass(frozen=True)
class S3Settings:
    """One resolved store.

    Attributes:
        endpoint_url: scheme, host and port without a path, e.g. "http://127.0.0.1:9000".
        path_style: the bucket is in the path (custom endpoints), not in the host name (AWS).
        region: the region that requests are signed for.
        trust: which certificates are believed, and which one is shown.
        origins: setting → where it came from, for a person.
    """

    endpoint_url: str
    path_style: bool
    region: str
    trust: Trust
    origins: Mapping[str, str]
    environ: Mapping[str, str] = field(repr=False)  # holds the secret key

    @cached_property
    def _credentials(self) -> "Credentials":
        return _find_credentials(self.environ, self.endpoint_url)

    def credentials(self) -> "Credentials":
        """botocore's credentials object; `get_frozen_credentials()` renews them where they expire.

        Raises:
            NoCredentials: none were found, or only half of a pair.
        """
        return self._credentials

    def frozen_credentials(self) -> "ReadOnlyCredentials":
        """Access key, secret key and token that are valid now, for one request.

        Raises NoCredentials, also where they expired and could not be renewed.
        """
        credentials = self._credentials
        if type(credentials).__name__ == "Credentials":  # these never expire: no need for botocore's errors
            return credentials.get_frozen_credentials()
        return _renewed(credentials, self.endpoint_url)

    def renew_credentials(self, refused: "ReadOnlyCredentials") -> bool:
        """Look for credentials anew after the store refused some; whether there are others now.

        Where another thread has already found others, those are kept.
        """
        with _renewing:
            if self.frozen_credentials() != refused:
                return True
            # cached_property keeps its value here.
            self.__dict__["_credentials"] = _find_credentials(self.environ, self.endpoint_url)
            changed: bool = self.frozen_credentials() != refused
            return changed


def resolve_s3_settings(environ: Mapping[str, str] = os.environ) -> S3Settings:
    """Find endpoint, addressing, region and CA bundle; credentials are looked for when first asked for.

    Raises:
        BadEndpoint: the endpoint has no scheme or host, or a path; a certificate's file does not exist.
        WrongRegion: the region's name cannot be one.
        NoCredentials: the profile that AWS_PROFILE names does not exist, or AWS's files cannot be read.
    """
    region_from, region = _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")
    endpoint_from, endpoint = _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    bundle_from, bundle = _first(environ, "AWS_CA_BUNDLE")
    # A profile that is named has to exist even where variables say all, as with the AWS CLI.
    if _names_profile(environ) or (not (region and endpoint) and _has_files(environ)):
        profile = _profile()
        if not region and profile.get("region"):
            region_from, region = "AWS profile", profile["region"]
        if not endpoint and profile.get("endpoint_url"):
            endpoint_from, endpoint = "AWS profile", profile["endpoint_url"]
        if not bundle and profile.get("ca_bundle"):
            bundle_from, bundle = "AWS profile", profile["ca_bundle"]
    if not region:
        region_from, region = "default", "us-east-1"
    if not _REGION.fullmatch(region):
        raise WrongRegion(
            region_from,
            f"{region!r:.80} cannot be the name of a region.",
            remedy="Write a name like us-east-1, which most self-hosted stores expect.",
        )
    trust = resolve_trust(environ, bundle=bundle, bundle_from=bundle_from, ca_variable="AWS_CA_BUNDLE")
    custom = bool(endpoint)
    if not endpoint:
        endpoint_from, endpoint = "AWS, by region", _aws_endpoint(region)
    return S3Settings(
        endpoint_url=_check_endpoint(endpoint, endpoint_from),
        path_style=custom,
        region=region,
        trust=trust,
        origins={
            "region": region_from,
            "endpoint": endpoint_from,
            "ca_bundle": bundle_from or trust.authorities,
        },
        environ=environ,
    )


def _first(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    for name in names:
        if environ.get(name):
            return name, environ[name].strip()
    return "", ""


def _aws_endpoint(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://s3.{region}.{suffix}"


def _check_endpoint(endpoint: str, origin: str) -> str:
    if "@" in endpoint:
        raise BadEndpoint(
            origin, "The endpoint holds a user name or password.", remedy="Use AWS_ACCESS_KEY_ID instead."
        )
    # Without path and query, which may hold a token.
    shown = re.match(r"([^/?#]*://)?[^/?#]*", endpoint).group()  # type: ignore[union-attr]
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise BadEndpoint(
            shown, f"The endpoint from {origin} is not a URL.", remedy=_ENDPOINT_REMEDY
        ) from None
    if parts.scheme not in ("http", "https") or "://" not in endpoint:
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} has no scheme (http:// or https://).",
            remedy=_ENDPOINT_REMEDY,
        )
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment or port == 0:
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} must be a scheme, a host and perhaps a port, without a path or a query.",
            remedy=_ENDPOINT_REMEDY + " The bucket belongs in the s3:// URI.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _names_profile(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE"))


def _has_files(environ: Mapping[str, str]) -> bool:
    config = environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    return any(os.path.isfile(os.path.expanduser(path)) for path in (config, credentials))  # noqa: PTH111, PTH113


def _session() -> "Session":
    from botocore.session import Session

    return Session()  # reads AWS_PROFILE and the files' places from the process's own environment


def _profile() -> dict[str, str]:
    """region, endpoint_url and ca_bundle of the named (or default) profile; its s3 service section wins."""
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    session = _session()
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
    section = services.get(str(scoped.get("services")), {}).get("s3", {})
    found = {name: scoped.get(name) for name in ("region", "endpoint_url", "ca_bundle")}
    if isinstance(section, dict) and section.get("endpoint_url"):
        found["endpoint_url"] = section["endpoint_url"]
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _find_credentials(environ: Mapping[str, str], endpoint: str) -> "Credentials":
    remedy = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile in AWS_PROFILE."
    access, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if bool(access) != bool(secret):
        missing = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
        raise NoCredentials(endpoint, f"{missing} is not set, its partner is.", remedy=remedy)
    if access:
        from botocore.credentials import Credentials

        token = environ.get("AWS_SESSION_TOKEN", "").strip()
        return Credentials(access.strip(), secret.strip(), token or None)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        credentials = _session().get_credentials()
    except (BotoCoreError, ClientError) as error:
        raise NoCredentials(endpoint, f"AWS credentials could not be had: {error}.", remedy=remedy) from None
    if credentials is None:
        raise NoCredentials(
            endpoint,
            "No AWS credentials were found (variables, files, container or instance role).",
            remedy=remedy,
        )
    return credentials


def _renewed(credentials: "Credentials", endpoint: str) -> "ReadOnlyCredentials":
    """Valid ones now, from credentials that may have to be asked for again. Raises NoCredentials."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return credentials.get_frozen_credentials()
    except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: the new ones are expired too
        raise NoCredentials(
            endpoint,
            f"AWS credentials expired and could not be renewed: {error}",
            remedy="Sign in again (e.g. `aws sso login`), or check the role that they come from.",
        ) from None
