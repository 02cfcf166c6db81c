"""Where an S3 store is and who asks: one resolver for listing, metadata, weights and upload.

What is said of it is read in `told`, and what follows from that in `place`. A bucket's region is found out where the
store says that it is another one.
"""

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.store.http.trust import Trust, resolve_trust
from headrace.store.s3.address import S3Address, address_of
from headrace.store.s3.credentials import NO_NAMES, Signer, find_credentials, frozen, no_credentials
from headrace.store.s3.kinds import AwsEndpoints
from headrace.store.s3.names import KeyNames, endpoint_name, key_names, region_name
from headrace.store.s3.place import REGION, find_place
from headrace.store.s3.told import PAYER_VARIABLE, read_anonymous, read_payer, read_told

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_renewing = threading.Lock()
_logger = logging.getLogger(__name__)


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
        if not REGION.fullmatch(region) or region == asked.region or bucket.startswith("arn:"):
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
    told = read_told(environ, called)
    bundle_from, bundle = told.bundle
    trust = resolve_trust(environ, bundle=bundle, bundle_from=bundle_from, ca_variable="AWS_CA_BUNDLE")
    place = find_place(told, environ)
    anonymous_from = read_anonymous(environ)
    payer = read_payer(environ)
    return S3Settings(
        endpoint_url=place.url,
        path_style=not place.virtual_host.on,
        region=place.region.value,
        trust=trust,
        origins={
            "ca_bundle": bundle_from or trust.authorities,
            "region": place.region.origin,
            "endpoint": place.endpoint.origin,
            "addressing": place.virtual_host.origin,
            "anonymous": anonymous_from,
            "request_payer": PAYER_VARIABLE if payer else "",
        },
        environ=environ,
        aws=place.aws,
        anonymous=bool(anonymous_from),
        request_payer=payer,
        called=called,
    )
