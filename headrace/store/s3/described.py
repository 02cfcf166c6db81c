"""S3's settings for a person: what is used, and where each came from."""

from headrace.store.described import Setting, masked
from headrace.store.errors import NoCredentials
from headrace.store.http.connect import endpoint_of
from headrace.store.s3.credentials import none_found, origin_of
from headrace.store.s3.settings import S3Settings


def describe_s3(settings: S3Settings, bucket: str) -> tuple[Setting, ...]:
    """Endpoint, addressing, region, principal, trust and what else is set. May look for credentials."""
    origins, address = settings.origins, settings.address_of(bucket)
    arn, found = bucket.startswith("arn:"), settings.found_region(bucket)
    style = origins["addressing"]
    if arn or (address.path != "/") != settings.path_style:
        style = "the access point's ARN" if arn else "the bucket's name, which fits into no host's"
    region = (
        "the access point's ARN" if arn else "found out: the store names it" if found else origins["region"]
    )
    settings_ = [
        Setting("endpoint", address.endpoint_url, origins["endpoint"]),
        Setting("addressing", address.addressing, style),
        Setting("region", address.region, region),
        _principal(settings),
    ]
    if settings.request_payer:
        settings_.append(Setting("request payer", settings.request_payer, origins["request_payer"]))
    endpoint = endpoint_of(address.origin, settings.trust)
    if endpoint.scheme == "https":
        trust = settings.trust
        authorities = "NONE: any certificate is taken" if trust.insecure else trust.authorities
        settings_.append(Setting("authorities", authorities, _origin_of_trust(settings)))
        if trust.client_certificate:
            settings_.append(Setting("client certificate", trust.client_certificate, "HEADRACE_CLIENT_CERT"))
    if endpoint.proxy is not None:
        settings_.append(Setting("proxy", endpoint.proxy.url, "the environment"))
    return tuple(settings_)


def _origin_of_trust(settings: S3Settings) -> str:
    trust, environ = settings.trust, settings.environ
    if trust.insecure:
        return "HEADRACE_INSECURE_TLS"
    if (origin := settings.origins["ca_bundle"]) != trust.authorities:
        return origin
    named = ("REQUESTS_CA_BUNDLE",) if trust.ca_bundle else ("SSL_CERT_FILE", "SSL_CERT_DIR")
    return next((name for name in named if environ.get(name)), "default")


def _principal(settings: S3Settings) -> Setting:
    if settings.anonymous:
        return Setting("principal", "nobody", settings.origins["anonymous"])
    try:
        if (signer := settings.signer()) is None:
            return Setting("principal", "nobody", none_found(settings.environ))
        origin = origin_of(settings.credentials(), settings.environ)
    except NoCredentials as error:
        return Setting("principal", "unknown", error.cause)
    temporary = ", temporary" if signer.token else ""
    return Setting("principal", f"{origin.kind} {masked(signer.access_key)}{temporary}", origin.place)
