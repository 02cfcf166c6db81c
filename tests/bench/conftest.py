"""What tests of the benchmark share."""

import venv
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing installed."""
    folder = tmp_path_factory.mktemp("bare-python")
    venv.create(folder, with_pip=False, symlinks=True)
    return str(Path(folder) / "bin" / "python")
