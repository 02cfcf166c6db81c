"""docs/streamer.md: what it shows runs as it is shown, and the names that it tells are there."""

import contextlib
import io
import re
from pathlib import Path
from typing import get_type_hints

import pytest

import headrace
from headrace.demo.store import SeaweedStore
from headrace.stream.library.options import StreamOptions
from headrace.stream.variables import CHUNK_BYTES, CONCURRENCY, MEMORY_LIMIT

PAGE = (Path(headrace.__file__).parent.parent / "docs" / "streamer.md").read_text(encoding="utf-8")
URI = "s3://models/smollm2"


def test_the_quick_start_prints_what_the_page_says(
    seaweed: SeaweedStore, smollm2_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    found = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    program, output = found.groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program.replace(URI, smollm2_uri), {})
    # Which tensor is the last one is as it happens.
    assert printed.getvalue().splitlines()[1:] == output.replace(URI, smollm2_uri).splitlines()[1:]


def test_every_keyword_and_variable_is_told() -> None:
    for name in (*get_type_hints(StreamOptions), CONCURRENCY, CHUNK_BYTES, MEMORY_LIMIT):
        assert f"| `{name}`" in PAGE or f", `{name}` |" in PAGE or f"`, `{name}`" in PAGE, name


def test_every_name_that_is_told_as_the_packages_is_there() -> None:
    told = set(re.findall(r"headrace\.(\w+)", PAGE)) | set(
        re.findall(r"from headrace import (.*)", PAGE)[0].split(", ")
    )
    assert told <= set(headrace.__all__)


def test_every_error_that_is_told_can_be_caught_by_its_name() -> None:
    told = set(re.findall(r"`(?:headrace\.)?([A-Z]\w*[a-z][A-Z]?\w*)`", PAGE))
    errors = {name for name in told if not name.endswith("Streamer")} - {"FileChunks", "ObjectStorageModel"}
    assert "PeerLost" in errors
    assert errors <= set(headrace.__all__)
