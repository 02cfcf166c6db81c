"""Azure's connection strings: endpoint, account and credentials in one line.

https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string
"""

from dataclasses import dataclass, field

from headrace.store.errors import BadEndpoint

CONNECTION_STRING_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
# The emulator's, the same for everyone and published: no secret.
DEVELOPMENT_ACCOUNT = "devstoreaccount1"
DEVELOPMENT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_DEVELOPMENT_URL = "http://127.0.0.1"
_DEVELOPMENT_PORT = 10000
_REMEDY = (
    f"Set {CONNECTION_STRING_VARIABLE} to what `az storage account show-connection-string` prints, "
    "or to UseDevelopmentStorage=true."
)


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """What one says; "" for what it does not.

    Attributes:
        endpoint: of the blob service, as it is written or as it follows from the account.
    """

    endpoint: str
    account: str
    key: str = field(repr=False)
    signature: str = field(repr=False)


def parse_connection_string(text: str) -> ConnectionString:
    """Read one. Raises BadEndpoint, without repeating any of it."""
    fields: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, separator, value = part.partition("=")
        if not separator or not name.strip():
            raise BadEndpoint(
                CONNECTION_STRING_VARIABLE,
                "It is no connection string: a part between semicolons is not NAME=VALUE.",
                remedy=_REMEDY,
            )
        fields[name.strip().lower()] = value.strip()
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        host = fields.get("developmentstorageproxyuri", _DEVELOPMENT_URL).rstrip("/")
        endpoint = f"{host}:{_DEVELOPMENT_PORT}/{DEVELOPMENT_ACCOUNT}"
        return ConnectionString(endpoint, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, "")
    account, endpoint = fields.get("accountname", ""), fields.get("blobendpoint", "")
    if not endpoint and account:
        scheme = fields.get("defaultendpointsprotocol", "https").lower()
        endpoint = f"{scheme}://{account}.blob.{fields.get('endpointsuffix', 'core.windows.net')}"
    if not endpoint:
        raise BadEndpoint(
            CONNECTION_STRING_VARIABLE, "It has neither AccountName nor BlobEndpoint.", remedy=_REMEDY
        )
    return ConnectionString(
        endpoint, account, fields.get("accountkey", ""), fields.get("sharedaccesssignature", "")
    )
