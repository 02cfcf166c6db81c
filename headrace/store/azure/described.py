"""What `headrace check` tells of a store in Azure: where it is and who asks, each with where that came from."""

from headrace.store.azure.settings import AzureSettings
from headrace.store.described import Setting
from headrace.store.http.connect import endpoint_of
from headrace.store.http.trust import INSECURE_VARIABLE


def describe_azure(settings: AzureSettings) -> tuple[Setting, ...]:
    """See Described.describe."""
    endpoint, principal, trust = settings.endpoint, settings.principal, settings.trust
    found = [
        Setting("endpoint", endpoint.url, endpoint.named_by),
        Setting("account", endpoint.account or "unknown", endpoint.account_from or endpoint.named_by),
        Setting(
            "addressing",
            f"the account in the {'path' if endpoint.path else 'host name'}",
            "found out",
        ),
        Setting("principal", principal.shown, principal.origin),
    ]
    origin = endpoint_of(endpoint.url, trust)
    if origin.scheme == "https":
        authorities, by = trust.authorities, trust.ca_variable if trust.ca_bundle else "default"
        if trust.insecure:
            authorities, by = "NONE: any certificate is taken", INSECURE_VARIABLE
        found.append(Setting("authorities", authorities, by))
    if origin.proxy is not None:
        found.append(Setting("proxy", origin.proxy.url, origin.proxy.variable))
    return tuple(found)
