"""Where a store is, from what was said of it: endpoint, region and addressing, each with where it came from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.store.errors import WrongRegion
from headrace.store.s3.endpoint import check_endpoint
from headrace.store.s3.kinds import AwsEndpoints, aws_endpoints, kind_of
from headrace.store.s3.told import Said, Switch, Told, read_addressing, read_switch

# botocore's rule, so that serve and push agree: a region is a label of a host's name.
REGION = re.compile(r"(?![0-9]+$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go.

    Attributes:
        endpoint: scheme, host and port; "" where `aws` tells it from the region.
        virtual_host: the bucket is in the host's name.
        aws: how Amazon's endpoints of other regions are named; None where the endpoint is another's.
    """

    endpoint: Said
    region: Said
    virtual_host: Switch
    aws: AwsEndpoints | None

    @property
    def url(self) -> str:
        """Of the region's endpoint."""
        return self.endpoint.value if self.aws is None else self.aws.url(self.region.value)


def find_place(told: Told, environ: Mapping[str, str]) -> Place:
    """What was said, what the endpoint's name tells, and what is usual, in this order.

    Raises:
        BadEndpoint: the endpoint has no scheme or host, or a path; a switch that is neither on nor off.
        WrongRegion: the region's name cannot be one.
    """
    style = read_addressing(environ, told.profile)
    if told.endpoint.value:
        place = _at_endpoint(told.endpoint, told.region, style)
    else:
        place = _at_amazon(told, style, environ)
    region, style = place.region, place.virtual_host
    if not region.value:
        region = Said("default", "us-east-1")
    if not REGION.fullmatch(region.value):
        raise WrongRegion(
            region.origin,
            f"{region.value!r:.80} cannot be the name of a region.",
            remedy="Write a name like us-east-1, which most self-hosted stores expect.",
        )
    if not style.origin:
        style = Switch("AWS", True) if place.aws else Switch("default for an endpoint of one's own", False)
    return Place(place.endpoint, region, style, place.aws)


def _at_endpoint(said: Said, region: Said, style: Switch) -> Place:
    endpoint = check_endpoint(said.value, said.origin)
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").lower()
    found = aws_endpoints(parts.scheme, host) if parts.port is None else None
    aws, hosts_region = found or (None, "")
    # Amazon's endpoint of one region knows no other; a region that is set for everything gives way to it.
    if hosts_region:
        region = Said(said.origin, hosts_region)
    if aws is None:
        kind, kinds_region = kind_of(host) or (None, "")
        if not region.value and kinds_region and kind is not None:
            region = Said(f"the endpoint, {kind.name}", kinds_region)
        if not style.origin and kind is not None and kind.virtual_host:
            style = Switch(f"the endpoint, {kind.name}", True)
    return Place(Said(said.origin, endpoint), region, style, aws)


def _at_amazon(told: Told, style: Switch, environ: Mapping[str, str]) -> Place:
    fips = read_switch(environ, told.profile, "AWS_USE_FIPS_ENDPOINT")
    dual = read_switch(environ, told.profile, "AWS_USE_DUALSTACK_ENDPOINT")
    origins = ["AWS, by region", *(switch.origin for switch in (fips, dual) if switch.on)]
    return Place(
        Said(", ".join(origins), ""), told.region, style, AwsEndpoints(dualstack=dual.on, fips=fips.on)
    )
