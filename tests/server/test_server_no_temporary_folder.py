"""A file system that is read-only throughout: the server says what it needs."""

import subprocess
import sys

LINE = (
    "import sys, tempfile; tempfile.tempdir = '/nonexistent'; from headrace.cli.main import main; "
    "sys.exit(main(['serve', 's3://bucket/model', '--port', '0']))"
)


def test_without_a_folder_for_its_socket_the_server_says_what_to_mount() -> None:
    ended = subprocess.run([sys.executable, "-c", LINE], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: There is no place for the socket between the server's two processes: No such file or directory.\n"
        "Make /tmp writable (where a container's file system is read-only: mount an emptyDir or a tmpfs there), or set "
        "TMPDIR to a folder that is.\n"
    )
