"""The demo's object store: it checks signatures, keeps its data, and ends with whoever started it."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError
from botocore.session import Session

from headrace.demo.identity import Identity
from headrace.demo.store import SeaweedStore, start_store
from headrace.demo.weed import StoreNotStarted, weed_binary
from tests.identities import READER


def s3_client(store: SeaweedStore, identity: Identity | None = None) -> Any:
    """botocore as the store's environment() sets it up."""
    variables = store.environment(identity)
    return Session().create_client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        region_name=variables["AWS_REGION"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        verify=variables.get("AWS_CA_BUNDLE"),
    )


def test_objects_and_buckets_survive_a_restart_on_other_ports(tmp_path: Path) -> None:
    with start_store(tmp_path) as store:
        s3_client(store).create_bucket(Bucket="kept")
        s3_client(store).put_object(Bucket="kept", Key="a/b", Body=b"x" * 100_000)
    with start_store(tmp_path) as store:
        answer = s3_client(store).get_object(Bucket="kept", Key="a/b")
        assert answer["Body"].read() == b"x" * 100_000
        s3_client(store).put_object(Bucket="kept", Key="c", Body=b"new after the restart")


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    content = os.urandom(9 << 20)  # more than one of its chunks
    with start_store(tmp_path) as store:
        s3_client(store).create_bucket(Bucket="kept")
        s3_client(store).put_object(Bucket="kept", Key="a", Body=content)
        os.kill(store.pid, signal.SIGKILL)
    with start_store(tmp_path) as store:
        assert s3_client(store).get_object(Bucket="kept", Key="a")["Body"].read() == content


def test_a_wrong_secret_is_refused(seaweed: SeaweedStore) -> None:
    stranger = Identity("stranger", seaweed.access_key, "not-the-secret-of-this-key", ())
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        s3_client(seaweed, stranger).list_buckets()


def test_a_missing_bucket_is_not_made_by_a_put(seaweed: SeaweedStore) -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3_client(seaweed).put_object(Bucket="never-made", Key="k", Body=b"")


def test_another_identity_may_do_only_what_its_actions_say(seaweed: SeaweedStore) -> None:
    s3_client(seaweed).create_bucket(Bucket="shared")
    s3_client(seaweed).put_object(Bucket="shared", Key="k", Body=b"v")
    assert s3_client(seaweed, READER).get_object(Bucket="shared", Key="k")["Body"].read() == b"v"
    with pytest.raises(ClientError, match="AccessDenied"):
        s3_client(seaweed, READER).put_object(Bucket="shared", Key="k", Body=b"w")


def test_two_stores_never_share_a_data_folder(tmp_path: Path) -> None:
    with start_store(tmp_path), pytest.raises(StoreNotStarted, match="Another object store is running"):
        start_store(tmp_path)
    with start_store(tmp_path):  # the lock went with the first one
        pass


def test_credentials_are_in_a_private_file_outside_the_data_folder_and_go_with_the_store(
    tmp_path: Path,
) -> None:
    with start_store(tmp_path) as store:
        command = psutil.Process(store.pid).cmdline()
        config = Path(next(flag for flag in command if flag.startswith("-s3.config=")).partition("=")[2])
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        assert tmp_path not in config.parents
        assert store.secret_key not in " ".join(command)
        holders = [path for path in tmp_path.rglob("*") if path.is_file() and holds(path, store.secret_key)]
    assert holders == []
    assert not config.parent.exists()


def holds(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()


def ports_of(command: list[str]) -> set[str]:
    """The ports for gRPC that a store was given."""
    return {flag.partition("=")[2] for flag in command if ".port.grpc=" in flag}


def sockets_of(ports: set[str]) -> list[Path]:
    """The sockets in /tmp that a store with these ports has made."""
    return [
        path for path in Path("/tmp").glob("seaweedfs-*-grpc-*.sock") if path.stem.rpartition("-")[2] in ports
    ]


def test_its_sockets_go_with_the_store(tmp_path: Path) -> None:
    others = set(Path("/tmp").glob("seaweedfs-*-grpc-*.sock"))
    with start_store(tmp_path) as store:
        ports = ports_of(psutil.Process(store.pid).cmdline())
        assert len(ports) == 5
        assert set(sockets_of(ports)) - others
    assert set(sockets_of(ports)) <= others


def test_a_socket_that_another_store_listens_on_by_now_is_left_alone(tmp_path: Path) -> None:
    from headrace.demo.leftovers import Leftovers

    dead, alive = tmp_path / "dead", tmp_path / "alive"
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as listening:
        gone.bind(str(dead))
        listening.bind(str(alive))
        listening.listen()
        Leftovers(tmp_path / "none", (dead, alive, tmp_path / "never made")).remove()
    assert not dead.exists()
    assert alive.is_socket()


def test_nothing_listens_beyond_loopback(seaweed: SeaweedStore) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(seaweed.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def test_a_store_whose_starter_is_killed_ends_and_the_next_one_tidies_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import sys, pathlib\n"
        "from headrace.demo.store import start_store\n"
        "store = start_store(pathlib.Path(sys.argv[1]))\n"
        "print(store.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    # Longer than the path of a Unix socket may be.
    data, temporary = tmp_path / "data", tmp_path / ("tmp" * 30)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # Another store's, killed long ago on a port that is used again now, are not this one's to remove.
    others = set(Path("/tmp").glob("seaweedfs-*-grpc-*.sock"))
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(data)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    store = psutil.Process(int(starter.stdout.readline()))
    command = store.cmdline()
    starter.kill()
    starter.communicate()
    store.wait(timeout=30)
    assert len(list(temporary.iterdir())) == 1
    left = set(sockets_of(ports_of(command))) - others
    assert left
    with start_store(data):
        pass
    assert list(temporary.iterdir()) == []
    assert not left & set(Path("/tmp").iterdir())


def test_the_folder_stays_locked_as_long_as_the_store_lives(tmp_path: Path) -> None:
    with start_store(tmp_path) as store:
        store._lock.close()  # as if its starter had been killed
        with pytest.raises(StoreNotStarted, match="Another object store is running"):
            start_store(tmp_path)


def test_a_store_that_cannot_start_says_what_its_log_says(tmp_path: Path) -> None:
    (tmp_path / "filerldb2").write_text("a file where the store's index should be")
    with pytest.raises(StoreNotStarted, match="filerldb2") as caught:
        start_store(tmp_path, timeout_s=20)
    assert "Its last lines" in caught.value.message


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    store = start_store(tmp_path)
    store.stop()
    store.stop()
    assert not psutil.pid_exists(store.pid)


def test_the_binary_comes_from_the_installed_package() -> None:
    assert os.access(weed_binary(), os.X_OK)
    assert Path(sys.prefix) in weed_binary().parents


def test_free_ports_are_free_and_different() -> None:
    from headrace.demo.ports import free_ports, is_free

    ports = free_ports(20, also_at_offset=10_000)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free(ports[0])
    assert is_free(ports[0] + 10_000)


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    from headrace.demo.child import end_child, start_child

    script = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    )
    child = start_child([sys.executable, "-c", script], environment=os.environ, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert end_child(child, timeout_s=0.2) == -signal.SIGKILL
    child.stdout.close()


def test_a_signal_during_the_start_of_a_child_is_not_lost() -> None:
    from headrace.demo.child import start_child

    class Came(BaseException):
        pass

    def handler(_signal: int, _frame: object) -> None:
        raise Came

    before_fork = True

    def raise_signal_once() -> None:
        nonlocal before_fork
        if before_fork:
            before_fork = False
            signal.raise_signal(signal.SIGTERM)

    os.register_at_fork(after_in_parent=raise_signal_once)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Came):
            start_child([sys.executable, "-c", "import signal; signal.pause()"], environment=os.environ)
    finally:
        signal.signal(signal.SIGTERM, before)
    # Other tests' children may be gone, or waiting to be collected, by the time they are looked at.
    shown = psutil.process_iter(["ppid", "cmdline"], ad_value=[])
    assert [
        child.info
        for child in shown
        if child.info["ppid"] == os.getpid() and "signal.pause" in " ".join(child.info["cmdline"])
    ] == []


def test_a_child_does_not_inherit_blocked_signals() -> None:
    from headrace.demo.child import start_child

    script = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    child = start_child([sys.executable, "-c", script], environment=os.environ, stdout=subprocess.PIPE)
    shown, _ = child.communicate()
    assert shown == b"set()\n"
