"""Where an Azure container is and who asks: one resolver for listing, metadata, weights and upload."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.source.uri import ModelSource
from headrace.store.azure.connection_string import CONNECTION_STRING_VARIABLE, parse_connection_string
from headrace.store.azure.endpoint import BlobEndpoint, find_blob_endpoint
from headrace.store.azure.principal import Principal, SharedKey
from headrace.store.azure.sign_in import find_principal
from headrace.store.http.proxy import is_loopback
from headrace.store.http.trust import Trust, resolve_trust

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """One resolved account.

    Attributes:
        principal: who asks.
    """

    endpoint: BlobEndpoint
    trust: Trust
    principal: Principal


def resolve_azure_settings(source: ModelSource, environ: Mapping[str, str] = os.environ) -> AzureSettings:
    """Find endpoint, certificates and credentials for a container.

    Where no key and no signature is given, azure-identity is asked for a token, which may take seconds.

    Raises:
        BadEndpoint: no account is named, or no endpoint; a certificate's file does not exist.
        NoCredentials: credentials cannot be used, or are for another account.
    """
    trust = resolve_trust(environ)
    text = environ.get(CONNECTION_STRING_VARIABLE, "").strip()
    connection = parse_connection_string(text) if text else None
    endpoint = find_blob_endpoint(source.host, connection, environ, source.uri)
    principal = find_principal(environ, endpoint, connection)
    is_secret = not principal.is_anonymous and not isinstance(principal, SharedKey)
    if (
        endpoint.url.startswith("http:")
        and is_secret
        and not is_loopback(urlsplit(endpoint.url).hostname or "")
    ):
        _logger.warning("%s: %s is sent unencrypted.", endpoint.url, principal.shown)
    return AzureSettings(endpoint, trust, principal)
