"""Finding out who asks Azure's blob service, by the environment; azure-identity finds identities and makes their tokens."""

import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.store.azure.connection_string import CONNECTION_STRING_VARIABLE, ConnectionString
from headrace.store.azure.endpoint import BlobEndpoint, account_of
from headrace.store.azure.principal import (
    Anonymous,
    AzureIdentity,
    Principal,
    shared_access_signature,
    shared_key,
)
from headrace.store.errors import BadSignature, ExpiredCredentials, NoCredentials
from headrace.store.http.answer import shortened

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.identity import DefaultAzureCredential

ANONYMOUS_VARIABLES = ("HEADRACE_AZURE_ANONYMOUS", "AZURE_STORAGE_ANONYMOUS")
KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
SAS_VARIABLE = "AZURE_STORAGE_SAS_TOKEN"
INSTALL = "pip install 'headrace[azure]'"
# The same in all of Microsoft's clouds.
_SCOPE = "https://storage.azure.com/.default"
# Any of these says that there is an identity to be had, so that failing to have it is an error.
_IDENTITY_VARIABLES = (
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_CLIENT_SECRET",
    "AZURE_CLIENT_CERTIFICATE_PATH",
    "AZURE_CLIENT_ID",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)
_KINDS = {
    "EnvironmentCredential": "the service principal in AZURE_CLIENT_ID",
    "WorkloadIdentityCredential": "the workload identity",
    "ManagedIdentityCredential": "the managed identity",
    "SharedTokenCacheCredential": "the user of the shared token cache",
    "AzureCliCredential": "the user of `az login`",
    "AzurePowerShellCredential": "the user of Azure PowerShell",
    "AzureDeveloperCliCredential": "the user of `azd auth login`",
}
_REMEDY = "Set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or sign in: `az login`."
_YES = ("1", "true", "yes", "on")
_logger = logging.getLogger(__name__)


def find_principal(
    environ: Mapping[str, str], endpoint: BlobEndpoint, connection: ConnectionString | None
) -> Principal:
    """Who asks, by the environment: what is given first, then an identity, then nobody.

    Args:
        connection: what AZURE_STORAGE_CONNECTION_STRING says, if it is set.

    Raises NoCredentials for what cannot be used, and where azure-identity is missing that would be needed.
    """
    for name in ANONYMOUS_VARIABLES:
        if environ.get(name, "").strip().lower() in _YES:
            return Anonymous(name, True)
    if connection is not None and (connection.key or connection.signature):
        _refuse_others(CONNECTION_STRING_VARIABLE, account_of(connection, {}), endpoint)
        if connection.key:
            return shared_key(
                CONNECTION_STRING_VARIABLE, connection.account or endpoint.account, connection.key
            )
        return shared_access_signature(CONNECTION_STRING_VARIABLE, connection.signature)
    named = account_of(connection, environ)
    for name in KEY_VARIABLES:
        if key := environ.get(name, "").strip():
            _refuse_others(name, named, endpoint)
            return shared_key(name, endpoint.account, key)
    if signature := environ.get(SAS_VARIABLE, "").strip():
        _refuse_others(SAS_VARIABLE, named, endpoint)
        return shared_access_signature(SAS_VARIABLE, signature)
    return _identity(environ, endpoint)


def _refuse_others(origin: str, account: str, endpoint: BlobEndpoint) -> None:
    """What opens one account is not sent to another one."""
    if account and endpoint.account and account != endpoint.account:
        raise NoCredentials(
            origin,
            f"Its credentials are for the account {account}; the URI names {endpoint.account}.",
            remedy=f"Set those of {endpoint.account}, or unset {origin}.",
        )


def _identity(environ: Mapping[str, str], endpoint: BlobEndpoint) -> Principal:
    hints = [name for name in _IDENTITY_VARIABLES if environ.get(name, "").strip()]
    looked = f"looked at {', '.join((CONNECTION_STRING_VARIABLE, *KEY_VARIABLES, SAS_VARIABLE))}"
    if find_spec("azure") is None or find_spec("azure.identity") is None:
        if hints:
            raise NoCredentials(
                hints[0], "azure-identity, which signs in by it, is not installed.", remedy=f"Run: {INSTALL}"
            )
        remedy = f"{_REMEDY} What finds identities is installed by: {INSTALL}"
        return Anonymous(f"{looked}; azure-identity is not installed", False, remedy)
    with _found_lock:
        if (known := _found.get(_fingerprint(endpoint))) is None:
            from azure.core.exceptions import ClientAuthenticationError

            chain = _Chain(endpoint.authority_host)
            try:
                token = chain.ask()
            except ClientAuthenticationError as error:
                if hints:
                    raise sign_in_error(error, hints[0]) from None
                return Anonymous(f"{looked} and for an identity", False, _REMEDY)
            known = AzureIdentity(
                chain.token, token, kind=chain.kind, on_failed_renewal=_warn_of_failed_renewal
            )
            _found[_fingerprint(endpoint)] = known
    return known


# One identity for all stores of a process that are opened in the same environment: whoever gives tokens is not asked
# for each folder of a model, and machines' own token servers bear few requests a second.
_found: dict[bytes, AzureIdentity] = {}
_found_lock = threading.Lock()


def _fingerprint(endpoint: BlobEndpoint) -> bytes:
    prefixes = ("AZURE_", "IDENTITY_", "MSI_", "IMDS_", "HTTPS_PROXY", "REQUESTS_CA", "SSL_CERT")
    values = [item for item in sorted(os.environ.items()) if item[0].upper().startswith(prefixes)]
    return hashlib.sha256(repr((endpoint.authority_host, values)).encode()).digest()


class _Chain:
    """azure-identity's DefaultAzureCredential, which keeps its tokens itself.

    It reads the process's own environment, and makes its requests by way of `requests`: proxies and certificates are
    those of the environment there too.
    """

    def __init__(self, authority_host: str) -> None:
        """Args: authority_host: who signs in; "" for what AZURE_AUTHORITY_HOST or Microsoft says."""
        # What it writes of each kind of credentials that is not there would look like a fault; and of every request.
        for name, level in (("azure.identity", logging.ERROR), ("azure.core", logging.WARNING)):
            if (logger := logging.getLogger(name)).level == logging.NOTSET:
                logger.setLevel(level)
        self._authority = "" if os.environ.get("AZURE_AUTHORITY_HOST") else authority_host
        self._credential = self._make()

    def _make(self) -> "DefaultAzureCredential":
        from azure.identity import DefaultAzureCredential

        options = {"authority": self._authority} if self._authority else {}
        bundle = os.environ.get("SSL_CERT_FILE", "")
        if bundle and not os.environ.get("REQUESTS_CA_BUNDLE"):  # which is all that requests knows by itself
            options["connection_verify"] = bundle
        return DefaultAzureCredential(**options)

    def ask(self) -> "AccessToken":
        """A token, as azure-identity raises."""
        token: AccessToken = self._credential.get_token(_SCOPE)
        return token

    def token(self, anew: bool) -> "AccessToken":
        """See TokenSource."""
        from azure.core.exceptions import AzureError

        if anew:  # what is kept was refused
            self._credential = self._make()
        try:
            return self.ask()
        except AzureError as error:
            raise sign_in_error(error, "DefaultAzureCredential") from None

    @property
    def kind(self) -> str:
        """Which of the chain's credentials gave the token, in words."""
        name = type(getattr(self._credential, "_successful_credential", None)).__name__
        return _KINDS.get(name, "an identity of DefaultAzureCredential")


def sign_in_error(error: Exception, origin: str) -> NoCredentials | BadSignature | ExpiredCredentials:
    """The typed error for what azure-identity raised when a token was to be made."""
    said = str(getattr(error, "message", "") or error)
    tried = [line.strip() for line in said.splitlines() if "Credential: " in line or "AADSTS" in line]
    shown = shortened("; ".join(tried) or said)
    if "AADSTS700024" in said or "AADSTS500133" in said:  # an assertion outside its time
        return BadSignature(
            origin,
            f"Microsoft refuses an assertion as outside its time: this machine's clock may be off. {shown}",
            remedy="Set the clock (NTP).",
        )
    if "AADSTS7000222" in said or "AADSTS70043" in said or "AADSTS700082" in said:
        return ExpiredCredentials(
            origin, f"The credentials have expired: {shown}", remedy="Make or get new ones."
        )
    return NoCredentials(
        origin,
        f"No access token could be had: {shown}",
        remedy="Check the identity that the environment names, or use an account key or a shared access signature.",
    )


def _warn_of_failed_renewal(error: Exception) -> None:
    _logger.warning("%s The access token that there is still holds for some minutes.", error)
