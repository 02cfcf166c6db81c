"""Where an S3 store is and who asks: one resolver for listing, metadata, weights and upload.

Settings come from the usual AWS variables first, then from AWS's files (read by botocore), then from what the
endpoint's name tells. A bucket's region is found out where the store says that it is another one.
"""

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint, WrongRegion
from headrace.store.http.trust import Trust, resolve_trust
from headrace.store.s3.address import S3Address, address_of
from headrace.store.s3.credentials import (
    ANONYMOUS_VARIABLES,
    NO_NAMES,
    Signer,
    find_credentials,
    frozen,
    no_credentials,
)
from headrace.store.s3.endpoint import check_endpoint
from headrace.store.s3.kinds import AwsEndpoints, aws_endpoints, kind_of
from headrace.store.s3.names import (
    ENDPOINT_VARIABLES,
    PROFILE,
    REGION_VARIABLES,
    KeyNames,
    endpoint_name,
    key_names,
    region_name,
)
from headrace.store.s3.profile import has_files, names_profile, read_profile

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_renewing = threading.Lock()
_logger = logging.getLogger(__name__)
# botocore's rule, so that serve and push agree: a region is a label of a host's name.
_REGION = re.compile(r"(?![0-9]+$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)
ADDRESSING_VARIABLE = "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"
PAYER_VARIABLE = "HEADRACE_S3_REQUEST_PAYER"


@dataclass(frozen=True)
class S3Settings:
    """One resolved store.

    Attributes:
        endpoint_url: scheme, host and port without a path, e.g. "http://127.0.0.1:9000".
        path_style: the bucket is in the path (most custom endpoints), not in the host name (AWS).
        region: the region that requests are signed for, unless a bucket turns out to be in another one.
        trust: which certificates are believed, and which one is shown.
        origins: setting → where it came from, for a person.
        aws: how Amazon's endpoints of other regions are named; None where the endpoint is another's.
        anonymous: requests are not signed, as was asked for.
        request_payer: who pays for requests, "requester" or "" for the bucket's owner.
        called: variable → its name in messages, where a caller has given what stands in it.
    """

    endpoint_url: str
    path_style: bool
    region: str
    trust: Trust
    origins: Mapping[str, str]
    environ: Mapping[str, str] = field(repr=False)  # holds the secret key
    aws: AwsEndpoints | None = None
    anonymous: bool = False
    request_payer: str = ""
    called: Mapping[str, str] = field(default_factory=dict)
    _regions: dict[str, str] = field(default_factory=dict, repr=False)
    _addresses: dict[str, S3Address] = field(default_factory=dict, repr=False)

    def address_of(self, bucket: str) -> S3Address:
        """Where requests for a bucket (or an access point's ARN) go. Raises Unsupported for a directory bucket."""
        found = self._addresses.get(bucket)
        if found is None:
            found = self._addresses[bucket] = address_of(self, bucket, self._regions.get(bucket, ""))
        return found

    def move(self, bucket: str, region: str, asked: S3Address) -> bool:
        """Note that a store said where a bucket is; whether asking again makes sense.

        Args:
            region: what the store said.
            asked: where it was asked.
        """
        if self.address_of(bucket) != asked:  # another thread was told before
            return True
        if not _REGION.fullmatch(region) or region == asked.region or bucket.startswith("arn:"):
            return False
        self._regions[bucket] = region
        self._addresses[bucket] = address_of(self, bucket, region)
        _logger.info(
            "s3://%s is in the region %s (%s says %s); it is read there.",
            bucket,
            region,
            self.origins["region"],
            asked.region,
        )
        return True

    def found_region(self, bucket: str) -> str:
        """The region that the store has named for a bucket, "" if it did not have to."""
        return self._regions.get(bucket, "")

    @cached_property
    def _credentials(self) -> "Credentials | None":
        return None if self.anonymous else self._find_credentials()

    def _find_credentials(self) -> "Credentials | None":
        return find_credentials(self.environ, self.endpoint_url, self.region, self.called)

    @property
    def endpoint_name(self) -> str:
        """What a person corrects where the endpoint is wrong."""
        return endpoint_name(self.origins, self.called)

    @property
    def region_name(self) -> str:
        """What a person corrects where the region is wrong."""
        return region_name(self.origins, self.called)

    @property
    def key_names(self) -> KeyNames:
        """What a person corrects where a key is wrong."""
        return key_names(self._credentials, self.environ, self.called)

    def credentials(self) -> "Credentials":
        """botocore's credentials object; `get_frozen_credentials()` renews them where they expire.

        Raises:
            NoCredentials: none were found, or only half of a pair.
        """
        credentials = self._credentials
        if credentials is None:
            raise no_credentials(self.endpoint_url, self.environ)
        return credentials

    def frozen_credentials(self) -> Signer:
        """Access key, secret key and token that are valid now, for one request.

        Raises NoCredentials, also where they expired and could not be renewed.
        """
        return frozen(self.credentials(), self.endpoint_url)

    def signer(self) -> "Signer | None":
        """What one request is signed with; None where it is not: nobody asks, or there are no credentials at all.

        Raises NoCredentials: only half of a pair, or credentials that should be there and cannot be had.
        """
        credentials = self._credentials
        return None if credentials is None else frozen(credentials, self.endpoint_url)

    def renew_credentials(self, refused: "Signer | None") -> bool:
        """Look for credentials anew after the store refused some; whether there are others now.

        Where another thread has already found others, those are kept.
        """
        if self.anonymous:
            return False
        with _renewing:
            if self.signer() != refused:
                return True
            # cached_property keeps its value here.
            self.__dict__["_credentials"] = self._find_credentials()
            return self.signer() != refused


def resolve_s3_settings(
    environ: Mapping[str, str] = os.environ, called: Mapping[str, str] = NO_NAMES
) -> S3Settings:
    """Find endpoint, addressing, region and CA bundle; credentials are looked for when first asked for.

    Args: called: see S3Settings.called.

    Raises:
        BadEndpoint: the endpoint has no scheme or host, or a path; a certificate's file does not exist; a switch
            that is neither on nor off.
        WrongRegion: the region's name cannot be one.
        NoCredentials: the profile that AWSPROFILE names does not exist, or AWS's files cannot be read.
    """
    region_from, region = _first(environ, *REGION_VARIABLES)
    endpoint_from, endpoint = _first(environ, *ENDPOINT_VARIABLES)
    region_from, endpoint_from = (called.get(name, name) for name in (region_from, endpoint_from))
    bundle_from, bundle = _first(environ, "AWS_CA_BUNDLE")
    profile: dict[str, str] = {}
    # A profile that is named has to exist even where variables say all, as with the AWS CLI.
    if names_profile(environ) or (not (region and endpoint) and has_files(environ)):
        profile = read_profile()
        if not region and profile.get("region"):
            region_from, region = PROFILE, profile["region"]
        if not endpoint and profile.get("endpoint_url"):
            endpoint_from, endpoint = PROFILE, profile["endpoint_url"]
        if not bundle and profile.get("ca_bundle"):
            bundle_from, bundle = PROFILE, profile["ca_bundle"]
    _, ignored = _switch(environ, profile, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    if ignored:
        endpoint_from, endpoint = "", ""
    trust = resolve_trust(environ, bundle=bundle, bundle_from=bundle_from, ca_variable="AWS_CA_BUNDLE")
    origins = {"ca_bundle": bundle_from or trust.authorities}
    style_from, virtual = _addressing(environ, profile)
    aws: AwsEndpoints | None
    if endpoint:
        endpoint = check_endpoint(endpoint, endpoint_from)
        parts = urlsplit(endpoint)
        host = (parts.hostname or "").lower()
        told = aws_endpoints(parts.scheme, host) if parts.port is None else None
        aws, hosts_region = told or (None, "")
        # Amazon's endpoint of one region knows no other; a region that is set for everything gives way to it.
        if hosts_region:
            region_from, region = endpoint_from, hosts_region
        if aws is None:
            kind, kinds_region = kind_of(host) or (None, "")
            if not region and kinds_region and kind is not None:
                region_from, region = f"the endpoint, {kind.name}", kinds_region
            if not style_from and kind is not None and kind.virtual_host:
                style_from, virtual = f"the endpoint, {kind.name}", True
    else:
        fips_from, fips = _switch(environ, profile, "AWS_USE_FIPS_ENDPOINT")
        dual_from, dualstack = _switch(environ, profile, "AWS_USE_DUALSTACK_ENDPOINT")
        aws = AwsEndpoints(dualstack=dualstack, fips=fips)
        endpoint_from = ", ".join(
            ["AWS, by region", *([fips_from] if fips else []), *([dual_from] if dualstack else [])]
        )
    if not region:
        region_from, region = "default", "us-east-1"
    if not _REGION.fullmatch(region):
        raise WrongRegion(
            region_from,
            f"{region!r:.80} cannot be the name of a region.",
            remedy="Write a name like us-east-1, which most self-hosted stores expect.",
        )
    if not style_from:
        style_from, virtual = "AWS" if aws else "default for an endpoint of one's own", aws is not None
    anonymous_from = next((name for name in ANONYMOUS_VARIABLES if _is_on(environ.get(name, ""), name)), "")
    payer = environ.get(PAYER_VARIABLE, "").strip()
    if payer not in ("", "requester"):
        raise BadEndpoint(
            PAYER_VARIABLE, f"{payer!r:.40} cannot pay for requests.", remedy="Write requester, or unset it."
        )
    return S3Settings(
        endpoint_url=endpoint if aws is None else aws.url(region),
        path_style=not virtual,
        region=region,
        trust=trust,
        origins=origins
        | {
            "region": region_from,
            "endpoint": endpoint_from,
            "addressing": style_from,
            "anonymous": anonymous_from,
            "request_payer": PAYER_VARIABLE if payer else "",
        },
        environ=environ,
        aws=aws,
        anonymous=bool(anonymous_from),
        request_payer=payer,
        called=called,
    )


def _first(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    for name in names:
        if environ.get(name):
            return name, environ[name].strip()
    return "", ""


def _addressing(environ: Mapping[str, str], profile: Mapping[str, str]) -> tuple[str, bool]:
    """Where the addressing is said ("" where it is not), and whether the bucket is in the host's name."""
    said = environ.get(ADDRESSING_VARIABLE, "").strip()
    if said:
        return ADDRESSING_VARIABLE, _is_on(said, ADDRESSING_VARIABLE)
    style = profile.get("addressing_style", "")
    if style in ("path", "virtual"):
        return PROFILE, style == "virtual"
    return "", False


def _switch(environ: Mapping[str, str], profile: Mapping[str, str], variable: str) -> tuple[str, bool]:
    """A setting of AWS's that is on or off: where it is said, and which."""
    said = environ.get(variable, "").strip()
    if said:
        return variable, _is_on(said, variable)
    said = profile.get(variable.removeprefix("AWS_").lower(), "")
    return PROFILE if said else "", _is_on(said, PROFILE)


def _is_on(text: str, named: str) -> bool:
    text = text.strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("", "0", "false", "no", "off"):
        return False
    raise BadEndpoint(named, f"{text!r:.40} is neither on nor off.", remedy="Write 1 or 0.")
