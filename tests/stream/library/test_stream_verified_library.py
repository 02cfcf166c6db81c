"""Verification and loading through changes, as a user of the library sees them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from headrace import SafetensorsStreamer, load_file
from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import BadManifest, encode_manifest
from headrace.store.crc import CRC64NVME
from headrace.store.errors import Changed, Corrupt
from headrace.stream import restart
from headrace.stream.library.load import CannotRestart
from headrace.stream.verify.mode import BadVerifyMode
from headrace.stream.verify.sums import NotVerifiable
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, Stored, fault_server
from tests.manifests import sums_of_file


def content(seed: int, rows: int = 600_000) -> bytes:
    values = np.frombuffer(random.Random(seed).randbytes(2 * rows), np.uint16)
    return save({"w": values, "v": values[:10].copy()})


def write(folder: Path, *names: str) -> list[Path]:
    folder.mkdir()
    for seed, name in enumerate(names):
        (folder / name).write_bytes(content(seed))
    return [folder / name for name in names]


def write_manifest(folder: Path) -> None:
    sums = {path.name: sums_of_file(path) for path in folder.glob("*.safetensors")}
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(sums))


def stream(paths: list[Path], **options: Any) -> str:
    """What is said of the load of all tensors."""
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths, framework="numpy", **options)
        for _ in streamer.get_tensors():
            pass
        verified = streamer.verified()
    return verified.describe() if verified is not None else "nothing"


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


def test_nothing_is_verified_unasked(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "a.safetensors")
    (tmp_path / "m" / MANIFEST_NAME).write_text("not read")
    assert stream([path]) == "nothing"


def test_files_of_a_folder_with_a_manifest_are_verified_whole(tmp_path: Path) -> None:
    paths = write(tmp_path / "m", "a.safetensors", "b.safetensors")
    write_manifest(tmp_path / "m")
    assert stream(paths, verify="require").startswith("Verified 100 % of the 2,4")


def test_each_place_has_a_manifest_of_its_own(tmp_path: Path) -> None:
    (first,), (second,), (third,) = (write(tmp_path / name, "a.safetensors") for name in "xyz")
    write_manifest(tmp_path / "x")
    write_manifest(tmp_path / "z")
    said = stream([first, second, third], verify="auto")
    assert said.startswith("Verified 66.7 % of the ")
    assert f"not verifiable: {second}: there is no {MANIFEST_NAME}, and" in said
    spoil(third)
    with pytest.raises(Corrupt, match=f"{third}: Bytes 1048576-1200"):
        stream([first, second, third], verify="auto")


def test_a_manifest_that_is_longer_than_the_first_look_is_read_whole(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "a.safetensors")
    manifest = encode_manifest({path.name: sums_of_file(path)})
    (tmp_path / "m" / MANIFEST_NAME).write_bytes(b" " * (3 << 20) + manifest)
    assert stream([path], verify="require").startswith("Verified 100 %")


def test_a_manifest_that_is_far_too_long_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "a.safetensors")
    with open(tmp_path / "m" / MANIFEST_NAME, "wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(BadManifest, match="has 67,108,865 bytes; a manifest has 67,108,864 at the most"):
        stream([path], verify="auto")


def test_a_part_of_a_file_is_verified_as_far_as_it_goes(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "a.safetensors")
    write_manifest(tmp_path / "m")
    assert stream([path], verify="auto", names=["v"]).startswith("Not verifiable: none of what")


def test_load_file_refuses_what_is_damaged(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "model.safetensors")
    write_manifest(tmp_path / "m")
    assert set(load_file(tmp_path / "m", framework="numpy", verify="require")) == {"v", "w"}
    spoil(path)
    with pytest.raises(Corrupt):
        load_file(tmp_path / "m", framework="numpy", verify="auto")


def test_what_cannot_be_verified_is_an_error_where_it_is_required(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "model.safetensors")
    with pytest.raises(NotVerifiable):
        load_file(path, framework="numpy", verify="require")


def test_another_word_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", "model.safetensors")
    with pytest.raises(BadVerifyMode, match="'always' is not known"):
        load_file(path, framework="numpy", verify="always")  # type: ignore[arg-type]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A store of which the environment knows, with one model."""
    with fault_server({"m/model.safetensors": content(0)}) as running:
        for name, value in environment_of(running).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(restart, "QUIET_S", (0.0001, 0.0001))
        yield running


def test_what_the_store_keeps_verifies_a_load(server: FaultServer) -> None:
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(CRC64NVME.of([content(0)]))}
    assert set(load_file("s3://bucket/m", framework="numpy", verify="require")) == {"v", "w"}
    server.head_fields = {"x-amz-checksum-crc64nvme": CRC64NVME.encode(5)}
    with pytest.raises(Corrupt):
        load_file("s3://bucket/m", framework="numpy", verify="auto")


def replace_in_the_load(server: FaultServer, times: int) -> None:
    """The object is another one each time when a chunk behind the header is asked for."""
    left = list(range(1, times + 1))

    def look(asked: faults.Asked) -> bytes | None:
        if asked.range is not None and asked.range[0] > 0 and left:
            server.objects["m/model.safetensors"] = Stored.of(content(left.pop(0)))
        return None

    server.refuse = look


@pytest.mark.parametrize("uri", ["s3://bucket/m", "s3://bucket/m/model.safetensors"])
def test_a_load_goes_through_a_change(uri: str, server: FaultServer) -> None:
    replace_in_the_load(server, 1)
    loaded = load_file(uri, framework="numpy", restart_on_change=True)
    assert save(loaded) == content(1)


@pytest.mark.parametrize("uri", ["s3://bucket/m", "s3://bucket/m/model.safetensors"])
def test_a_failure_in_the_wait_for_rest_is_got_over(
    uri: str, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [faults.error_answer(500)] * 2
    waits = restart._wait_for_rest

    def fail_first(look: Callable[[], object], *rest: Any) -> None:
        server.refuse = lambda asked: failures.pop() if failures else None
        waits(look, *rest)

    monkeypatch.setattr(restart, "_wait_for_rest", fail_first)
    replace_in_the_load(server, 1)
    loaded = load_file(uri, framework="numpy", restart_on_change=True)
    assert save(loaded) == content(1)
    assert not failures


def test_by_default_a_change_is_an_error(server: FaultServer) -> None:
    replace_in_the_load(server, 1)
    with pytest.raises(Changed, match=r"Listed: 1,200,\d+ bytes, ETag .*; now 1,200,\d+ bytes, ETag "):
        load_file("s3://bucket/m", framework="numpy")


def test_a_load_that_ranks_share_does_not_begin_anew_by_itself() -> None:
    with pytest.raises(CannotRestart):
        load_file("s3://bucket/m", framework="numpy", restart_on_change=True, is_distributed=True)
