"""A botocore client with the resolver's settings, and its errors in our taxonomy. Used to write, never to load."""

import os
from typing import Any

from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)
from botocore.session import Session
from urllib3 import disable_warnings
from urllib3.exceptions import InsecureRequestWarning

from headrace.store.errors import StoreError, TlsError, TransientError, Unreachable
from headrace.store.http.connect import CONNECT_TIMEOUT_S, endpoint_of, warn_of_insecurity
from headrace.store.http.proxy import proxy_url_for
from headrace.store.http.trust import Trust
from headrace.store.s3.credentials import no_credentials
from headrace.store.s3.errors import error_of_code
from headrace.store.s3.settings import S3Settings

READ_TIMEOUT_S = 60


def make_s3_client(
    settings: S3Settings, *, attempts: int, connections: int = 10, bucket: str = ""
) -> BaseClient:
    """An S3 client that asks whom and where the resolver says.

    Args:
        bucket: which the client is for: it is asked where it was found to be. "" where that is not known.
        attempts: how often one request is sent at the most.
        connections: how many are kept open; one for each thread that uses the client.

    Raises NoCredentials.
    """
    session = Session()
    if not settings.anonymous:
        # The resolver's own, which renew themselves; botocore has no setter.
        session._credentials = settings.credentials()
    address = settings.address_of(bucket) if bucket else None
    if address is not None:
        style = "path" if address.path != "/" else "virtual"
    else:
        style = "path" if settings.path_style else "auto"
    if settings.trust.insecure and settings.endpoint_url.startswith("https:"):
        warn_of_insecurity(endpoint_of(settings.endpoint_url).url)
        disable_warnings(InsecureRequestWarning)  # urllib3's own comes with each request
    options: dict[str, Any] = {}
    if settings.aws is None and "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
        # Stores that are not AWS often know no CRC trailers. Over http the body is signed instead.
        options["request_checksum_calculation"] = "when_required"
    config = Config(
        signature_version=UNSIGNED if settings.anonymous else "s3v4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=connections,
        retries={"mode": "standard", "total_max_attempts": attempts},
        s3={"addressing_style": style},
        user_agent="headrace",
        proxies=_proxies(settings.endpoint_url),
        client_cert=_client_certificate(settings.trust),
        **options,
    )
    client: BaseClient = session.create_client(
        "s3",
        region_name=address.region if address else settings.region,
        endpoint_url=address.endpoint_url if address else settings.endpoint_url,
        verify=_verify(settings.trust),
        config=config,
    )
    if settings.request_payer:

        def add_payer(request: AWSRequest, **_: object) -> None:
            request.headers["x-amz-request-payer"] = settings.request_payer

        client.meta.events.register("before-sign.s3", add_payer)
    return client


def _proxies(endpoint_url: str) -> dict[str, str]:
    """botocore's own look at the environment knows neither networks in NO_PROXY nor loopback."""
    endpoint = endpoint_of(endpoint_url)
    found = proxy_url_for(endpoint.scheme, endpoint.host, endpoint.port)
    return {endpoint.scheme: found[1]} if found else {}


def _client_certificate(trust: Trust) -> str | tuple[str, str] | None:
    if trust.client_certificate is None or trust.client_key is None:
        return trust.client_certificate
    return trust.client_certificate, trust.client_key


def _verify(trust: Trust) -> bool | str | None:
    """botocore's `verify`; None leaves it to botocore's own list of authorities."""
    if trust.insecure:
        return False
    return trust.ca_bundle or os.environ.get("SSL_CERT_FILE") or None


def store_error(
    error: BotoCoreError | ClientError, uri: str, settings: S3Settings, bucket: str
) -> StoreError:
    """The typed error for what botocore raised."""
    if isinstance(error, ClientError):
        facts = error.response.get("ResponseMetadata", {})
        details = error.response.get("Error", {})
        status = int(facts.get("HTTPStatusCode", 0))
        # The answer to a HEAD has no body: botocore puts the status in the code's place.
        code = "" if str(details.get("Code", "")).isdigit() else str(details.get("Code", ""))
        request_id = str(facts.get("RequestId", ""))
        message = str(details.get("Message", ""))
        return error_of_code(uri, status, code, message, request_id, settings, bucket)
    endpoint = settings.endpoint_url
    if isinstance(error, NoCredentialsError):
        return no_credentials(endpoint, settings.environ)
    if isinstance(error, SSLError):
        return TlsError(
            endpoint, f"The TLS handshake failed: {error}", remedy="Name the store's CA in AWS_CA_BUNDLE."
        )
    if isinstance(error, ProxyConnectionError) and (proxy := endpoint_of(endpoint).proxy) is not None:
        return Unreachable(
            endpoint, f"The proxy {proxy.url} does not answer or does not let us pass.", remedy=proxy.remedy
        )
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return Unreachable(
            endpoint,
            "The endpoint does not answer.",
            remedy=f"Check {settings.endpoint_name} and that the store is running.",
        )
    if isinstance(error, ReadTimeoutError | ConnectionClosedError | HTTPClientError):
        remedy = f"Try again; if it is always so, check the scheme and the port in {settings.endpoint_name}."
        return TransientError(uri, f"The connection failed: {error}", remedy=remedy)
    return StoreError(uri, f"The request could not be made: {error}")
