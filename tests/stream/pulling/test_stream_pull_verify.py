"""Pulled files are what they should be, by a manifest among them or by what the store keeps, before they get their name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.files import MANIFEST_NAME
from headrace.source.manifest import BadManifest, encode_manifest
from headrace.store.block_sums import BlockSummer
from headrace.store.crc import CRCS
from headrace.store.errors import AccessDenied, Corrupt
from headrace.stream.pulling.proof import FileProver
from headrace.stream.pulling.pull import FoundFile, Pulled, Watch, pull_found
from headrace.stream.verify.mode import VerifyMode
from headrace.stream.verify.sums import NotVerifiable
from tests.faults import server as faults
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, Stored, fault_server

DATA = bytes(range(256)) * 10_000  # three blocks


def manifest_of(**contents: bytes) -> bytes:
    sums = {}
    for name, content in contents.items():
        summer = BlockSummer()
        summer.update(content)
        sums[f"{name}.safetensors"] = summer.sums()
    return encode_manifest(sums)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({"model/x.safetensors": DATA, "model/config.json": b"{}"}) as running:
        yield running


def found_in(server: FaultServer) -> list[FoundFile]:
    store = store_of(server, stall_timeout_s=5.0)
    return [FoundFile(store, item, item.name) for item in store.list_below()]


def pull(server: FaultServer, folder: Path, mode: VerifyMode) -> tuple[Pulled, list[str], int]:
    """What was pulled, what of it was proved, and the bytes that were told."""
    found = found_in(server)
    prover = FileProver(mode, found)
    told: list[int] = []
    try:
        pulled = pull_found(found, folder, None, None, Watch(prover.begin, told.append, prover.prove))
    finally:
        prover.close()
    return pulled, sorted(prover.proved), sum(told)


def test_a_file_is_proved_by_the_manifest_beside_it(server: FaultServer, tmp_path: Path) -> None:
    server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(manifest_of(x=DATA))
    pulled, proved, told = pull(server, tmp_path, "manifest")
    assert proved == ["x.safetensors"]
    assert sorted(pulled.fetched) == ["config.json", MANIFEST_NAME, "x.safetensors"]
    assert told == sum((tmp_path / name).stat().st_size for name in pulled.fetched)


def test_a_manifest_in_a_folder_below_is_that_folders(server: FaultServer, tmp_path: Path) -> None:
    server.objects["model/deep/y.safetensors"] = Stored.of(DATA)
    server.objects[f"model/deep/{MANIFEST_NAME}"] = Stored.of(manifest_of(y=DATA))
    assert pull(server, tmp_path, "manifest")[1] == ["deep/y.safetensors"]


@pytest.mark.parametrize("place", [0, 1_500_000, len(DATA) - 1])
def test_a_wrong_byte_is_named_and_nothing_gets_the_files_name(
    server: FaultServer, tmp_path: Path, place: int
) -> None:
    wrong = DATA[:place] + bytes([DATA[place] ^ 1]) + DATA[place + 1 :]
    server.objects["model/x.safetensors"] = Stored.of(wrong)
    server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(manifest_of(x=DATA))
    with pytest.raises(
        Corrupt, match=r"model/x\.safetensors: Bytes \d+-\d+ are not what they should be"
    ) as caught:
        pull(server, tmp_path, "auto")
    first, last = caught.value.cause.split()[1].split("-")
    assert int(first) <= place <= int(last)
    assert not (tmp_path / "x.safetensors").exists()
    server.objects["model/x.safetensors"] = Stored.of(DATA)
    pull(server, tmp_path, "auto")
    assert (tmp_path / "x.safetensors").read_bytes() == DATA


def test_what_the_store_sends_wrong_once_is_fetched_from_its_beginning_next_time(
    server: FaultServer, tmp_path: Path
) -> None:
    server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(manifest_of(x=DATA))
    found = [file for file in found_in(server) if file.path == "x.safetensors"]
    prover = FileProver("manifest", found_in(server))
    spoiled: list[Path] = []

    def prove(file: FoundFile, path: Path) -> None:
        if not spoiled:
            spoiled.append(path)
            path.write_bytes(bytes(len(DATA)))
        prover.prove(file, path)

    watch = Watch(prover.begin, lambda _count: None, prove)
    with pytest.raises(Corrupt):
        pull_found(found, tmp_path, None, None, watch)
    assert not spoiled[0].exists()
    pull_found(found, tmp_path, None, None, watch)
    assert (tmp_path / "x.safetensors").read_bytes() == DATA


def test_a_stale_manifest_ends_the_pull_before_it_begins(server: FaultServer, tmp_path: Path) -> None:
    server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(manifest_of(x=DATA[:-1]))
    with pytest.raises(BadManifest, match="stale"):
        pull(server, tmp_path, "manifest")
    assert not (tmp_path / "x.safetensors").exists()


def test_without_a_manifest_the_stores_own_crc_is_compared(server: FaultServer, tmp_path: Path) -> None:
    crc = CRCS["crc64nvme"]
    server.head_fields = {"x-amz-checksum-crc64nvme": crc.encode(crc.of([DATA]))}
    server.objects.pop("model/config.json")
    assert pull(server, tmp_path / "right", "auto")[1] == ["x.safetensors"]
    server.head_fields = {"x-amz-checksum-crc64nvme": crc.encode(crc.of([DATA[1:]]))}
    with pytest.raises(Corrupt, match="that the store keeps"):
        pull(server, tmp_path / "wrong", "auto")


def test_nothing_to_compare_with_is_an_error_only_where_it_is_required(
    server: FaultServer, tmp_path: Path
) -> None:
    assert pull(server, tmp_path / "auto", "auto")[1] == []
    with pytest.raises(NotVerifiable):
        pull(server, tmp_path / "require", "require")


def test_bytes_of_an_earlier_try_count_when_it_goes_on(server: FaultServer, tmp_path: Path) -> None:
    server.objects.pop("model/config.json")
    server.play(faults.short_body(1_000), faults.error(403, "AccessDenied"))
    with pytest.raises(AccessDenied):
        pull(server, tmp_path, "off")
    assert pull(server, tmp_path, "off")[2] == len(DATA)
    server.play(faults.reset_body(1_000))  # tried again at once: nothing counts twice
    assert pull(server, tmp_path / "again", "off")[2] == len(DATA)


def test_off_compares_nothing_and_asks_for_nothing(server: FaultServer, tmp_path: Path) -> None:
    server.objects[f"model/{MANIFEST_NAME}"] = Stored.of(b"no manifest")
    assert pull(server, tmp_path, "off")[1] == []
    assert all(asked.method == "GET" for asked in server.log)
