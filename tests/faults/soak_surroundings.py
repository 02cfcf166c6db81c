"""What the loads of a soak share: a file of credentials, a certificate, and a signal that interrupts them."""

import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.opening import SECRET

OLD_KEY, NEW_KEY = "AKOLD000000000000000", "AKNEW000000000000000"


class Interrupted(BaseException):
    """What a signal handler raises in the middle of a load, as Ctrl-C does."""


class Surroundings:
    """What the loads of a soak share: a file of credentials that they rotate, and a signal that interrupts them."""

    def __init__(self, credentials_file: Path, tls: ssl.SSLContext) -> None:
        """Args:
        credentials_file: the one that AWS_SHARED_CREDENTIALS_FILE names.
        tls: of servers whose certificate the environment trusts.
        """
        self._file, self.tls = credentials_file, tls
        self._loading = False

    def write_key(self, access_key: str) -> None:
        """Let the credentials be these."""
        self._file.write_text(
            f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {SECRET}\n"
        )

    @contextmanager
    def handling(self) -> Iterator[None]:
        """SIGUSR1 raises Interrupted where a load is under way."""

        def handle(_number: int, _frame: object) -> None:
            if self._loading:
                raise Interrupted

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A part that may be interrupted."""
        try:
            self._loading = True
            yield
        finally:
            self._loading = False

    def interrupt(self) -> None:
        """Send the signal to the main thread."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
