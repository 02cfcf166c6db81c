"""nanio, a small S3 server in Python: it checks signatures, and neither conditions nor TLS.

It reads keys with a percent sign otherwise than they were signed, so it is not among the places of the suite.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.ports import free_ports
from tests.downloads import cached_folder
from tests.stores.place import Place

# Without the loop and the parser that it asks for, which would change the server under test too.
_PACKAGES = ("nanio==0.1.7", "aiofiles==25.1.0", "defusedxml==0.7.1")
_PATIENCE_S = 60.0


def _install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, *_PACKAGES], check=True, capture_output=True, text=True)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def nanio_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, secret = tmp_path_factory.mktemp("nanio"), secrets.token_urlsafe(30)
    (port,) = free_ports(1)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKNANIO0123456789",
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [
        sys.executable,
        "-c",
        "from nanio.cli import main; main()",
        "serve",
        "--data-dir",
        str(folder / "data"),
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--no-access-log"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={
                "PATH": os.environ.get("PATH", ""),
                "PYTHONPATH": str(cached_folder("pypi-" + _PACKAGES[0], _install)),
                "NANIO_ACCESS_KEY": environment["AWS_ACCESS_KEY_ID"],
                "NANIO_SECRET_KEY": secret,
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_listening(port):
            said = (folder / "log").read_text(errors="replace")
            assert process.poll() is None, f"nanio ended: {said}"
            assert time.monotonic() < deadline, f"nanio does not answer: {said}"
            time.sleep(0.05)
        yield Place(
            "s3://suite/team/models", dict(environment), describes=("endpoint", "region", "principal")
        )
    finally:
        process.terminate()
        process.wait()
