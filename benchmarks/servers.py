"""Servers for the loaders: nginx (plain and TLS) and nanio, a store that checks signatures. They end with their block.

Each is a child with a death signal: it ends with us however we end.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import free_port

from headrace.demo.child import end_child, start_child
from headrace.errors import HeadraceError

_START_S = 20.0
_NGINX = """\
daemon off;
{user}worker_processes auto;
pid {run}/pid;
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  log_format request '$status $request_length $bytes_sent';
  access_log {run}/access.log request;
  client_body_temp_path {run}/body; proxy_temp_path {run}/proxy; fastcgi_temp_path {run}/fastcgi;
  uwsgi_temp_path {run}/uwsgi; scgi_temp_path {run}/scgi;
  default_type application/octet-stream;
  sendfile on; tcp_nopush on; tcp_nodelay on;
  keepalive_requests 1000000;
  server {{ listen {address}:{port}{ssl}; root {root}; {certificate} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server.

    Attributes:
        url: its origin.
        access_log: a line per request; None where it keeps none.
        environ: variables that a client needs.
    """

    url: str
    access_log: Path | None
    environ: Mapping[str, str]


@contextlib.contextmanager
def nginx(
    root: Path, *, tls: bool = False, address: str = "127.0.0.1", within: Sequence[str] = ()
) -> Iterator[Serving]:
    """nginx over a folder.

    Args:
        within: what its command begins with, e.g. to run it in a network namespace.
    """
    binary = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        raise HeadraceError("nginx is not installed.", remedy="On Debian: apt-get install nginx-light.")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-nginx-") as run:
        environ = _certificate(Path(run), address) if tls else {}
        text = _NGINX.format(
            user="user root;\n" if os.geteuid() == 0 else "",  # who else could read the files?
            run=run,
            address=address,
            port=port,
            root=root,
            ssl=" ssl" if tls else "",
            certificate=f"ssl_certificate {run}/cert.pem; ssl_certificate_key {run}/key.pem;" if tls else "",
        )
        Path(run, "nginx.conf").write_text(text)
        command = [*within, binary, "-e", "stderr", "-p", run, "-c", f"{run}/nginx.conf"]
        with _running(command, dict(os.environ), address, port):
            scheme = "https" if tls else "http"
            yield Serving(f"{scheme}://{address}:{port}", Path(run, "access.log"), environ)


@contextlib.contextmanager
def nanio(binary: Path, data: Path) -> Iterator[Serving]:
    """nanio over a folder whose folders are buckets, with keys of its own."""
    if not binary.exists():
        raise HeadraceError(f"There is no {binary}.", remedy="Run `make peers`.")
    port = free_port()
    keys = {"NANIO_ACCESS_KEY": "bench", "NANIO_SECRET_KEY": "only-for-the-benchmark"}
    command = [
        *(str(binary), "serve", "--data-dir", str(data), "--host", "127.0.0.1", "--port", str(port)),
        *("--log-level", "error", "--no-access-log"),
    ]
    with _running(command, dict(os.environ) | keys, "127.0.0.1", port):
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": keys["NANIO_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": keys["NANIO_SECRET_KEY"],
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield Serving(f"http://127.0.0.1:{port}", None, variables)


@contextlib.contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str], address: str, port: int) -> Iterator[None]:
    process = start_child(command, environment=environ, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(address, port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise HeadraceError(f"{command[0]} does not serve on port {port}: see what it says above.")
            time.sleep(0.05)
        yield
    finally:
        end_child(process)


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _certificate(folder: Path, address: str) -> dict[str, str]:
    """A certificate of our own for an address; the variables that make clients trust it."""
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert(address)
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(folder / "cert.pem"), append=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    # Each client has a variable of its own that counts before the others.
    return dict.fromkeys(("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), str(folder / "ca.pem"))
