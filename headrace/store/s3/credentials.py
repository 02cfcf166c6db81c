"""Who asks an S3 store: static keys from variables, else botocore's whole chain, which renews them.

The chain: profiles (keys, role_arn with source_profile or credential_source, SSO, `aws login`, credential_process),
web identity (IRSA), containers (ECS, EKS pod identity), the EC2 instance's role (IMDSv2).
https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.store.errors import NoCredentials
from headrace.store.s3.profile import file_paths, new_session

if TYPE_CHECKING:
    from botocore.credentials import Credentials

ANONYMOUS_VARIABLES = ("HEADRACE_S3_ANONYMOUS", "RUNAI_STREAMER_S3_UNSIGNED")
NONE_FOUND = "No AWS credentials were found (variables, files, container or instance role)"
_RUBBISH_REMEDY = (
    "See what `aws sts get-caller-identity` says, and mend the profile's credential_process or its files."
)
# What botocore lets through where a credential_process prints something else, a file is none, or a quote is missing.
_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError)
_MOST_SAID = 500  # characters of a program's own words
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NONE_REMEDY = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile in AWS_PROFILE."


@dataclass(frozen=True, slots=True)
class Origin:
    """What a kind of credentials is called, and where it comes from."""

    kind: str
    place: str


@dataclass(frozen=True, slots=True)
class Signer:
    """What one request is signed with. botocore's own tuple would show the secret in a traceback with variables."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)


_ORIGINS = {
    "explicit": Origin("access key", "AWS_ACCESS_KEY_ID"),
    "env": Origin("access key", "AWS_ACCESS_KEY_ID"),
    "shared-credentials-file": Origin("access key", "{credentials}, profile {profile}"),
    "config-file": Origin("access key", "{config}, profile {profile}"),
    "assume-role": Origin("assumed role", "role_arn of the profile {profile}"),
    "assume-role-with-web-identity": Origin("role of a web identity", "{web_identity}"),
    "sso": Origin("single sign-on", "sso_* of the profile {profile}"),
    "login": Origin("sign-in of `aws login`", "login_session of the profile {profile}"),
    "custom-process": Origin("process", "credential_process of the profile {profile}"),
    "container-role": Origin("container's role", "{container}"),
    "iam-role": Origin("EC2 instance's role", "instance metadata"),
    "ec2-credentials-file": Origin("access key", "AWS_CREDENTIAL_FILE"),
    "boto-config": Origin("access key", "boto's config file"),
}


def find_credentials(
    environ: Mapping[str, str], endpoint: str, region: str, called: Mapping[str, str] = NO_NAMES
) -> "Credentials | None":
    """Credentials that renew themselves where they expire; None where there are none at all.

    Args:
        endpoint: the store's, for messages.
        region: where roles are asked for, if nothing that botocore reads says it.
        called: what variables are called in messages, where a caller has given what stands in them.

    Raises:
        NoCredentials: half of a pair, or a provider that is configured and fails.
    """
    access, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if bool(access) != bool(secret):
        missing = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
        remedy = (
            NONE_REMEDY if missing not in called else "Give both, or neither for those of the environment."
        )
        raise NoCredentials(
            endpoint, f"{called.get(missing, missing)} is not set, its partner is.", remedy=remedy
        )
    if access:
        from botocore.credentials import Credentials

        token = environ.get("AWS_SESSION_TOKEN", "").strip()
        return Credentials(access.strip(), secret.strip(), token or None)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = new_session()
        if not session.get_config_variable("region"):  # it does not read AWS_REGION
            session.set_config_variable("region", "us-east-1" if region == "auto" else region)
        return session.get_credentials()
    except (BotoCoreError, ClientError) as error:
        raise _not_had(endpoint, _said(error), NONE_REMEDY) from None
    except OSError as error:  # a file or a program that the profile or a variable names
        raise _not_had(endpoint, _said(error), "Correct the file's name.") from None
    except _NOT_UNDERSTOOD as error:
        raise _not_had(endpoint, _rubbish(error), _RUBBISH_REMEDY) from None


def _not_had(endpoint: str, why: str, remedy: str) -> NoCredentials:
    return NoCredentials(endpoint, f"AWS credentials could not be had: {why}.", remedy=remedy)


def _said(error: Exception) -> str:
    """botocore's sentence, or what a program has written, on one line and without a full stop."""
    return " ".join(str(error).split())[:_MOST_SAID].rstrip(". ")


def _rubbish(error: Exception) -> str:
    # Nothing of it is repeated: it may be the secret.
    return f"a program or a file that gives them gives something else ({type(error).__name__})"


def frozen(credentials: "Credentials", endpoint: str) -> Signer:
    """Access key, secret key and token that are valid now, for one request.

    Raises NoCredentials where they expired and could not be renewed.
    """
    if type(credentials).__name__ == "Credentials":  # these never expire: no need for botocore's errors
        return _signer(credentials)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _signer(credentials)
    except (BotoCoreError, ClientError, OSError, RuntimeError) as error:
        # RuntimeError: the new ones are expired too
        raise NoCredentials(
            endpoint,
            f"AWS credentials expired and could not be renewed: {_said(error)}.",
            remedy="Sign in again (e.g. `aws sso login`), or check the role that they come from.",
        ) from None
    except _NOT_UNDERSTOOD as error:
        raise NoCredentials(
            endpoint,
            f"AWS credentials expired and could not be renewed: {_rubbish(error)}.",
            remedy=_RUBBISH_REMEDY,
        ) from None


def _signer(credentials: "Credentials") -> Signer:
    now = credentials.get_frozen_credentials()
    return Signer(now.access_key, now.secret_key, now.token)


def origin_of(credentials: "Credentials", environ: Mapping[str, str]) -> Origin:
    """What the credentials are and where they come from, for a person."""
    origin = _ORIGINS.get(credentials.method or "", Origin("credentials", credentials.method or "unknown"))
    config, shared = file_paths(environ)
    container = next(
        (
            name
            for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
            if environ.get(name)
        ),
        "the profile's credential_source",
    )
    web_identity = "AWS_WEB_IDENTITY_TOKEN_FILE"
    place = origin.place.format(
        config=config,
        credentials=shared,
        container=container,
        web_identity=web_identity if environ.get(web_identity) else "web_identity_token_file of the profile",
        profile=_named_profile(environ) or "default",
    )
    return Origin(origin.kind, place)


def none_found(environ: Mapping[str, str]) -> str:
    """That nothing was found, and that a profile which is named has nothing either."""
    profile = _named_profile(environ)
    return f"{NONE_FOUND[:-1]}; the profile {profile} has none)" if profile else NONE_FOUND


def no_credentials(
    endpoint: str, environ: Mapping[str, str], consequence: str = "", status: int | None = None
) -> NoCredentials:
    """The error where there are no credentials at all.

    Args: consequence: what follows from it, with a comma before it.
    """
    profile = _named_profile(environ)
    remedy = NONE_REMEDY
    if profile:
        remedy = f"Give the profile {profile} keys or a role, or name another one in AWS_PROFILE."
    return NoCredentials(endpoint, f"{none_found(environ)}{consequence}.", remedy=remedy, status=status)


def _named_profile(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or ""
