"""Waiting until a store that was just started answers a signed request."""

import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from headrace.demo.identity import Identity, Tls
from headrace.demo.weed import StoreNotStarted

REGION = "us-east-1"
_LOG_TAIL_LINES = 15


def wait_until_answering(
    process: subprocess.Popen[bytes],
    endpoint_url: str,
    administrator: Identity,
    run_dir: Path,
    tls: Tls | None,
    timeout_s: float,
) -> None:
    """Raises StoreNotStarted, with the last lines of its log, if it ends or is not there in time."""
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
