"""The library with the C++ kernels is found, turned off, or said to be missing."""

import importlib.machinery
from pathlib import Path

import pytest

from headrace.kernels.native.library import BadKernels, find, kernels


def test_it_was_built_with_the_package() -> None:
    found = kernels.__wrapped__()
    assert found.library is not None
    assert found.why_not == ""


def test_the_references_can_be_asked_for_and_nothing_is_wrong_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KERNELS", "reference")
    found = kernels.__wrapped__()
    assert found.library is None
    assert found.why_not == ""


def test_an_empty_value_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KERNELS", "")
    assert kernels.__wrapped__().library is not None


def test_a_value_that_means_nothing_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KERNELS", "fast")
    with pytest.raises(BadKernels, match="HEADRACE_KERNELS=fast") as caught:
        kernels.__wrapped__()
    assert caught.value.remedy is not None
    assert '"reference"' in caught.value.remedy


def test_a_package_without_the_library_says_that_it_was_not_built(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert found.library is None
    assert "compiler" in found.why_not


def test_a_library_that_does_not_load_says_why(tmp_path: Path) -> None:
    broken = tmp_path / f"_kernels{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"not a library")
    found = find(tmp_path)
    assert found.library is None
    assert str(broken) in found.why_not
