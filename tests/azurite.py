"""Azurite on loopback: Microsoft's own emulator of the blob service, over http or https.

It checks signatures by key and by SAS, conditions and ranges; what it cannot produce is in tests/store/scripted_azure.py.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.demo.identity import Tls
from headrace.source.uri import ModelSource, parse_source
from headrace.store.azure.connection import AzureConnection
from headrace.store.azure.connection_string import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.errors import StoreError
from tests.downloads import installed_from_npm, node

PACKAGE = "azurite@3.35.0"
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running server.

    Attributes:
        url: scheme, host and port, without the account.
        tls: the certificate that it shows over https.
    """

    url: str
    tls: Tls | None = None

    @property
    def trust(self) -> dict[str, str]:
        """The variables that make its certificate believed."""
        return {"REQUESTS_CA_BUNDLE": str(self.tls.certificate)} if self.tls else {}

    @property
    def place(self) -> dict[str, str]:
        """The variables that lead there, without credentials."""
        return {
            "AZURE_STORAGE_ENDPOINT": self.url,
            "AZURE_STORAGE_ACCOUNT_NAME": DEVELOPMENT_ACCOUNT,
            **self.trust,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead there with the account's key."""
        return {**self.place, "AZURE_STORAGE_ACCOUNT_KEY": DEVELOPMENT_KEY}

    def ask(
        self,
        method: str,
        uri: str,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """One request for a container or a blob (az://container/key); the answer's body."""
        source = parse_source(uri)
        connection = self.connection(source)
        try:
            head = connection.send(method, source.prefix, query or {}, headers or {}, body)
            answer = connection.http.read_body(1 << 20)
            if head.status >= 300:
                raise connection.error(uri, head, answer)
            return answer
        finally:
            connection.http.close()

    def connection(self, source: ModelSource) -> AzureConnection:
        """A connection that may do everything."""
        return AzureConnection(
            resolve_azure_settings(source, self.environment), source.bucket, uri=source.uri
        )

    def make_container(self, name: str, *, public: str = "") -> None:
        """A new container; `public` is "container" or "blob"."""
        headers = {"x-ms-blob-public-access": public} if public else {}
        self.ask("PUT", f"az://{name}", {"restype": "container"}, headers, b"")

    def put(self, uri: str, data: bytes, **headers: str) -> None:
        """A new blob, or a new version of one."""
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        self.ask("PUT", uri, {}, {"x-ms-blob-type": "BlockBlob", **own}, data)


@contextmanager
def azurite(folder: Path, tls: Tls | None = None, *, tokens: bool = False) -> Iterator[Azurite]:
    """A server whose data lie in the folder. Args: tokens: it takes those of identities too (https only)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    program = installed_from_npm(PACKAGE) / "node_modules/azurite/dist/src/blob/main.js"
    command = [node(), str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["-l", str(folder), "-s", "--disableTelemetry"]
    if tls:
        command += ["--cert", str(tls.certificate), "--key", str(tls.key)]
    if tokens:
        command += ["--oauth", "basic"]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        server = Azurite(f"{'https' if tls else 'http'}://127.0.0.1:{port}", tls)
        try:
            _wait_until_it_answers(server, process)
            yield server
        finally:
            process.terminate()
            process.wait()


def _wait_until_it_answers(server: Azurite, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            server.make_container("awake")
            return
        except StoreError:
            assert process.poll() is None, "azurite ended at its start"
            assert time.monotonic() < deadline, "azurite does not answer"
            time.sleep(0.1)


def account_signature(permissions: str, *, lasts_s: float = 3600, kinds: str = "sco") -> str:
    """A shared access signature by the vendor's own library; `kinds` of resources: service, container, object."""
    from azure.storage.blob import generate_account_sas

    now = datetime.now(UTC)
    made: str = generate_account_sas(
        DEVELOPMENT_ACCOUNT,
        DEVELOPMENT_KEY,
        resource_types=kinds,
        permission=permissions,
        start=now - timedelta(hours=2),
        expiry=now + timedelta(seconds=lasts_s),
    )
    return made
