"""What is known of an S3 endpoint by its host's name: Amazon's own, and look-alikes with ways of their own.

Amazon's: https://docs.aws.amazon.com/general/latest/gr/s3.html
"""

import re
from dataclasses import dataclass

_AWS = re.compile(
    r"s3(?P<fips>-fips)?(?P<dualstack>\.dualstack)?(?:[.-](?P<region>(?!fips|dualstack)[a-z0-9-]+))?"
    r"\.(?:amazonaws\.com(?:\.cn)?|c2s\.ic\.gov|sc2s\.sgov\.gov|amazonaws\.eu)",
    re.ASCII,
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
        host: what its hosts' names look like; a group is the region.
        region: what it signs for where neither the host nor a setting says it; "" is us-east-1.
        virtual_host: whether it wants the bucket in the host's name.
    """

    name: str
    host: re.Pattern[str]
    region: str = ""
    virtual_host: bool = False


def _kind(name: str, host: str, region: str = "", *, virtual_host: bool = False) -> EndpointKind:
    return EndpointKind(name, re.compile(host, re.ASCII), region, virtual_host)


# A store that is not here is addressed path-style and signed for us-east-1, as most self-hosted ones want it.
KINDS = (
    _kind("Cloudflare R2", r".+\.r2\.cloudflarestorage\.com", "auto"),
    _kind("CoreWeave AI Object Storage", r"(?:.+\.)?cwobject\.com", virtual_host=True),
    _kind("CoreWeave LOTA", r"(?:.+\.)?cwlota\.com", virtual_host=True),
    _kind("Tigris", r"(?:.+\.)?(?:t3\.storage\.dev|fly\.storage\.tigris\.dev)", "auto", virtual_host=True),
    _kind("Google Cloud Storage's XML API", r"storage\.googleapis\.com", "auto"),
    _kind("Alibaba Cloud OSS", r"(?:s3\.)?(oss-[a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com", virtual_host=True),
    _kind("Tencent Cloud COS", r"cos\.([a-z0-9-]+)\.myqcloud\.com", virtual_host=True),
    _kind("Backblaze B2", r"s3\.([a-z0-9-]+)\.backblazeb2\.com"),
    _kind("Wasabi", r"s3\.([a-z0-9-]+)\.wasabisys\.com"),
    _kind("Scaleway Object Storage", r"s3\.([a-z0-9-]+)\.scw\.cloud"),
    _kind("OVHcloud Object Storage", r"s3\.([a-z0-9-]+)\.(?:io|perf)\.cloud\.ovh\.(?:net|us)"),
    _kind("an Amazon VPC endpoint", r".+\.s3\.([a-z0-9-]+)\.vpce\.amazonaws\.com"),
)


def aws_suffix(region: str) -> str:
    """The domain of a region's endpoints."""
    return next((suffix for start, suffix in _AWS_SUFFIXES if region.startswith(start)), "amazonaws.com")


def aws_endpoints(scheme: str, host: str) -> tuple[AwsEndpoints, str] | None:
    """Amazon's endpoints that a host's name is one of, and its region ("" for the global one); None for another's."""
    match = _AWS.fullmatch(host)
    if match is None:
        return None
    region = match["region"] or ""
    if region == "external-1":  # an old name
        region = "us-east-1"
    return AwsEndpoints(scheme, bool(match["dualstack"]), bool(match["fips"])), region


def kind_of(host: str) -> tuple[EndpointKind, str] | None:
    """The service that a host belongs to, and the region that it signs for ("" where that is not known)."""
    for kind in KINDS:
        if match := kind.host.fullmatch(host):
            found = next((group for group in match.groups() if group), "")
            return kind, found or kind.region
    return None
