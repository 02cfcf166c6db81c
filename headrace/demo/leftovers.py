"""What a store makes outside its data folder, so that it goes with the store or, after a kill, with the next one."""

import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RUN_DIR_PREFIX = "headrace-store-"
# `weed mini` puts a socket here for each service's own calls, whatever TMPDIR and its -localSocket flags say.
_SOCKET_DIR = Path("/tmp")
_SOCKET_PREFIX = "seaweedfs-"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """One store's.

    Attributes:
        run_dir: its temporary folder.
        sockets: the Unix sockets of its services.
    """

    run_dir: Path
    sockets: tuple[Path, ...]

    def remove(self) -> None:
        """Remove what is there. The store must have ended."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        for path in self.sockets:
            if _is_dead(path):
                path.unlink(missing_ok=True)


def leftovers_of(run_dir: Path, grpc_ports: Mapping[str, int]) -> Leftovers:
    """Of a store whose services (master, volume, filer, s3, admin) have these ports for gRPC."""
    names = [f"{_SOCKET_PREFIX}{service}-grpc-{port}.sock" for service, port in grpc_ports.items()]
    return Leftovers(run_dir, tuple(_SOCKET_DIR / name for name in names))


def remember(lock: IO[str], leftovers: Leftovers) -> None:
    """Write them into the store's lock file."""
    lock.seek(0)
    lock.truncate()
    lock.write("\n".join(map(str, (leftovers.run_dir, *leftovers.sockets))))
    lock.flush()


def recall(lock: IO[str], temporary: Path) -> Leftovers | None:
    """Those that the lock file tells of, if they are under `temporary` and so may be removed."""
    lock.seek(0)
    run_dir, *sockets = map(Path, lock.read().split("\n"))
    if not run_dir.name.startswith(RUN_DIR_PREFIX) or run_dir.parent != temporary:
        return None
    ours = (path for path in sockets if path.parent == _SOCKET_DIR and path.name.startswith(_SOCKET_PREFIX))
    return Leftovers(run_dir, tuple(ours))


def _is_dead(path: Path) -> bool:
    """Whether it is a socket that nobody listens on: another store may have got the port meanwhile."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # busy, just removed, or another user's
            return False
    return False
