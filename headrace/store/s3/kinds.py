"""What is known of an S3 endpoint by its host's name: Amazon's own, and look-alikes with ways of their own.

Amazon's: https://docs.aws.amazon.com/general/latest/gr/s3.html
"""

import re
from dataclasses import dataclass

# Compiled when a host may be one of these: most stores' hosts are not, and each takes part of a millisecond.
_AWS = (
    r"s3(?P<fips>-fips)?(?P<dualstack>\.dualstack)?(?:[.-](?P<region>(?!fips|dualstack)[a-z0-9-]+))?"
    r"\.(?:amazonaws\.com(?:\.cn)?|c2s\.ic\.gov|sc2s\.sgov\.gov|amazonaws\.eu)"
)
_AWS_SUFFIXES = (
    ("cn-", "amazonaws.com.cn"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eusc-", "amazonaws.eu"),
)


@dataclass(frozen=True, slots=True)
class AwsEndpoints:
    """Amazon's own endpoints, one for each region.

    Attributes:
        dualstack: those that answer IPv6 too.
        fips: those with FIPS 140 cryptography.
    """

    scheme: str = "https"
    dualstack: bool = False
    fips: bool = False

    def url(self, region: str, service: str = "s3") -> str:
        """The endpoint of a region."""
        fips = "-fips" if self.fips else ""
        dualstack = ".dualstack" if self.dualstack else ""
        return f"{self.scheme}://{service}{fips}{dualstack}.{region}.{aws_suffix(region)}"


@dataclass(frozen=True, slots=True)
class EndpointKind:
    """A service that speaks S3.

    Attributes:
        name: for a person.
        domains: what its hosts' names end in.
        host: what they look like as a whole; a group is the region.
        region: what it signs for where neither the host nor a setting says it; "" is us-east-1.
        virtual_host: whether it wants the bucket in the host's name.
    """

    name: str
    domains: tuple[str, ...]
    host: str
    region: str = ""
    virtual_host: bool = False


# A store that is not here is addressed path-style and signed for us-east-1, as most self-hosted ones want it.
KINDS = (
    EndpointKind("Cloudflare R2", (".r2.cloudflarestorage.com",), r".+", "auto"),
    EndpointKind(
        "CoreWeave AI Object Storage", ("cwobject.com",), r"(?:.+\.)?cwobject\.com", virtual_host=True
    ),
    EndpointKind("CoreWeave LOTA", ("cwlota.com",), r"(?:.+\.)?cwlota\.com", virtual_host=True),
    EndpointKind(
        "Tigris", (".storage.dev", ".storage.tigris.dev"), r"(?:.+\.)?(?:t3|fly)\.storage\..+", "auto", True
    ),
    EndpointKind(
        "Google Cloud Storage's XML API", ("storage.googleapis.com",), r"storage\.googleapis\.com", "auto"
    ),
    EndpointKind(
        "Alibaba Cloud OSS",
        (".aliyuncs.com",),
        r"(?:s3\.)?(oss-[a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com",
        virtual_host=True,
    ),
    EndpointKind(
        "Tencent Cloud COS", (".myqcloud.com",), r"cos\.([a-z0-9-]+)\.myqcloud\.com", virtual_host=True
    ),
    EndpointKind("Backblaze B2", (".backblazeb2.com",), r"s3\.([a-z0-9-]+)\.backblazeb2\.com"),
    EndpointKind("Wasabi", (".wasabisys.com",), r"s3\.([a-z0-9-]+)\.wasabisys\.com"),
    EndpointKind("Scaleway Object Storage", (".scw.cloud",), r"s3\.([a-z0-9-]+)\.scw\.cloud"),
    EndpointKind(
        "OVHcloud Object Storage",
        (".cloud.ovh.net", ".cloud.ovh.us"),
        r"s3\.([a-z0-9-]+)\.(?:io|perf)\.cloud\.ovh\..+",
    ),
    EndpointKind(
        "an Amazon VPC endpoint", (".vpce.amazonaws.com",), r".+\.s3\.([a-z0-9-]+)\.vpce\.amazonaws\.com"
    ),
)


def aws_suffix(region: str) -> str:
    """The domain of a region's endpoints."""
    return next((suffix for start, suffix in _AWS_SUFFIXES if region.startswith(start)), "amazonaws.com")


def aws_endpoints(scheme: str, host: str) -> tuple[AwsEndpoints, str] | None:
    """Amazon's endpoints that a host's name is one of, and its region ("" for the global one); None for another's."""
    match = re.fullmatch(_AWS, host, re.ASCII) if host.startswith("s3") else None
    if match is None:
        return None
    region = match["region"] or ""
    if region == "external-1":  # an old name
        region = "us-east-1"
    return AwsEndpoints(scheme, bool(match["dualstack"]), bool(match["fips"])), region


def kind_of(host: str) -> tuple[EndpointKind, str] | None:
    """The service that a host belongs to, and the region that it signs for ("" where that is not known)."""
    for kind in KINDS:
        if host.endswith(kind.domains) and (match := re.fullmatch(kind.host, host, re.ASCII)):
            found = next((group for group in match.groups() if group), "")
            return kind, found or kind.region
    return None
