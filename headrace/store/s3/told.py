"""What variables and AWS's files say of an S3 store, each with where it stands. Variables come first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.store.errors import BadEndpoint
from headrace.store.s3.credentials import ANONYMOUS_VARIABLES
from headrace.store.s3.names import ENDPOINT_VARIABLES, PROFILE, REGION_VARIABLES
from headrace.store.s3.profile import has_files, names_profile, read_profile

ADDRESSING_VARIABLE = "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"
PAYER_VARIABLE = "HEADRACE_S3_REQUEST_PAYER"


class Said(NamedTuple):
    """A setting, and where it was said; both "" where nowhere."""

    origin: str
    value: str


class Switch(NamedTuple):
    """A setting that is on or off, and where that was said; "" where nowhere."""

    origin: str
    on: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of where a store is.

    Attributes:
        profile: what AWS's files say; empty where they were not needed.
    """

    region: Said
    endpoint: Said
    bundle: Said
    profile: Mapping[str, str]


def read_told(environ: Mapping[str, str], called: Mapping[str, str]) -> Told:
    """Region, endpoint and CA bundle, as they are written.

    Args: called: variable → its name in messages, where a caller has given what stands in it.

    Raises:
        BadEndpoint: a switch that is neither on nor off.
        NoCredentials: the profile that is named does not exist, or AWS's files cannot be read.
    """
    region, endpoint = _first(environ, *REGION_VARIABLES), _first(environ, *ENDPOINT_VARIABLES)
    region, endpoint = (Said(called.get(said.origin, said.origin), said.value) for said in (region, endpoint))
    bundle = _first(environ, "AWS_CA_BUNDLE")
    profile: dict[str, str] = {}
    # A profile that is named has to exist even where variables say all, as with the AWS CLI.
    if names_profile(environ) or (not (region.value and endpoint.value) and has_files(environ)):
        profile = read_profile()
        region = _or_profile(region, profile, "region")
        endpoint = _or_profile(endpoint, profile, "endpoint_url")
        bundle = _or_profile(bundle, profile, "ca_bundle")
    if read_switch(environ, profile, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").on:
        endpoint = Said("", "")
    return Told(region, endpoint, bundle, profile)


def read_addressing(environ: Mapping[str, str], profile: Mapping[str, str]) -> Switch:
    """Whether the bucket is in the host's name. Raises BadEndpoint for what is neither on nor off."""
    said = environ.get(ADDRESSING_VARIABLE, "").strip()
    if said:
        return Switch(ADDRESSING_VARIABLE, _is_on(said, ADDRESSING_VARIABLE))
    style = profile.get("addressing_style", "")
    if style in ("path", "virtual"):
        return Switch(PROFILE, style == "virtual")
    return Switch("", False)


def read_switch(environ: Mapping[str, str], profile: Mapping[str, str], variable: str) -> Switch:
    """A setting of AWS's. Raises BadEndpoint for what is neither on nor off."""
    said = environ.get(variable, "").strip()
    if said:
        return Switch(variable, _is_on(said, variable))
    said = profile.get(variable.removeprefix("AWS_").lower(), "")
    return Switch(PROFILE if said else "", _is_on(said, PROFILE))


def read_anonymous(environ: Mapping[str, str]) -> str:
    """The variable that asks for requests without a signature, "" if none does. Raises BadEndpoint as the others."""
    return next((name for name in ANONYMOUS_VARIABLES if _is_on(environ.get(name, ""), name)), "")


def read_payer(environ: Mapping[str, str]) -> str:
    """Who pays for requests: "requester", or "" for the bucket's owner. Raises BadEndpoint for anybody else."""
    payer = environ.get(PAYER_VARIABLE, "").strip()
    if payer not in ("", "requester"):
        raise BadEndpoint(
            PAYER_VARIABLE, f"{payer!r:.40} cannot pay for requests.", remedy="Write requester, or unset it."
        )
    return payer


def _first(environ: Mapping[str, str], *names: str) -> Said:
    for name in names:
        if environ.get(name):
            return Said(name, environ[name].strip())
    return Said("", "")


def _or_profile(said: Said, profile: Mapping[str, str], name: str) -> Said:
    return said if said.value or not profile.get(name) else Said(PROFILE, profile[name])


def _is_on(text: str, named: str) -> bool:
    text = text.strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("", "0", "false", "no", "off"):
        return False
    raise BadEndpoint(named, f"{text!r:.40} is neither on nor off.", remedy="Write 1 or 0.")
