"""list_safetensors, pull_files and ObjectStorageModel: files beside the weights, whole, current, and where they belong."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import AccessDenied, NotFound, ObjectStorageModel, S3Credentials, list_safetensors, pull_files
from headrace.demo.store import SeaweedStore
from headrace.source.uri import BadSource, parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from headrace.stream.pulling.object_storage_model import NothingPulled
from headrace.stream.pulling.pull import BadKey
from headrace.stream.pulling.record import RECORD_NAME
from headrace.stream.pulling.writing import CannotWrite
from headrace.stream.variables import BadSetting
from tests.faults import server as faults
from tests.faults.server import FaultServer, Stored, fault_server, list_answer
from tests.stream.streaming import FOLDER, credentials_of

pytestmark = pytest.mark.timeout(120)
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": bytes(3000),
    "b.safetensors": b"",
    "1_Pooling/config.json": b"{}",
    "1_Pooling/deep/er/größe.txt": b"text",
}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


def put(server: FaultServer, files: dict[str, bytes]) -> None:
    server.objects.update({f"model/{name}": Stored.of(data) for name, data in files.items()})


def files_in(folder: Path) -> dict[str, bytes]:
    """All files but the record of what was pulled."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD_NAME
    }


def gets(server: FaultServer) -> int:
    return len(server.ranges)


@pytest.fixture(scope="module")
def bucket(seaweed: SeaweedStore, tmp_path_factory: pytest.TempPathFactory) -> SeaweedStore:
    """FILES in s3://pulled/model of a real store."""
    folder = tmp_path_factory.mktemp("to-pull")
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    place = resolve_s3_settings(seaweed.environment())
    upload_files(find_files(folder).files, parse_source("s3://pulled/model"), place, create_bucket=True)
    for below in ("1_Pooling", "1_Pooling/deep/er"):
        found = find_files(folder / below).files
        upload_files(found, parse_source(f"s3://pulled/model/{below}"), place, create_bucket=True)
    return seaweed


def credentials(store: SeaweedStore) -> S3Credentials:
    found = store.environment()
    return S3Credentials(
        found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"], endpoint=found["AWS_ENDPOINT_URL"]
    )


def test_safetensors_are_listed_by_their_whole_names(bucket: SeaweedStore, tmp_path: Path) -> None:
    expected = ["s3://pulled/model/b.safetensors", "s3://pulled/model/model.safetensors"]
    assert list_safetensors("s3://pulled/model", credentials(bucket)) == expected
    assert list_safetensors("S3://pulled/model/", credentials(bucket)) == expected
    for name in ("z.safetensors", "a.safetensors", "config.json"):
        (tmp_path / name).touch()
    assert list_safetensors(tmp_path) == [str(tmp_path / "a.safetensors"), str(tmp_path / "z.safetensors")]


def test_a_place_that_does_not_exist_is_told(bucket: SeaweedStore) -> None:
    with pytest.raises(NotFound, match="s3://pulled/nothing"):
        list_safetensors("s3://pulled/nothing", credentials(bucket))
    with pytest.raises(BadSource):
        list_safetensors("/there/is/no/such/folder")


def test_all_files_in_all_depths_are_pulled(bucket: SeaweedStore, tmp_path: Path) -> None:
    pull_files("s3://pulled/model", tmp_path / "new", s3_credentials=credentials(bucket))
    assert files_in(tmp_path / "new") == FILES


def test_patterns_fit_the_path_below_the_prefix_or_the_whole_key(
    bucket: SeaweedStore, tmp_path: Path
) -> None:
    def pulled(name: str, **patterns: Any) -> set[str]:
        pull_files("s3://pulled/model/", tmp_path / name, s3_credentials=credentials(bucket), **patterns)
        return set(files_in(tmp_path / name))

    assert pulled("1", allow_pattern=["config.json"]) == {"config.json"}
    assert pulled("2", allow_pattern=["*config.json"]) == {"config.json", "1_Pooling/config.json"}
    assert pulled("3", allow_pattern=["model/config.json"]) == {"config.json"}
    assert pulled("4", ignore_pattern=["*.safetensors", "1_*"]) == {"config.json"}
    assert pulled("5", allow_pattern=["*.json", "*.txt"], ignore_pattern=["1_Pooling/deep/*"]) == {
        "config.json",
        "1_Pooling/config.json",
    }
    assert pulled("6", allow_pattern=[]) == set()


def test_a_folder_is_pulled_too_and_a_circle_of_links_ends(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "x.txt").write_bytes(b"x")
    (source / "below" / "round").symlink_to(source)
    pull_files(source, tmp_path / "copy")
    assert files_in(tmp_path / "copy") == {"below/x.txt": b"x"}


def test_what_has_not_changed_is_not_fetched_again(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"config.json": b"one", "vocab.json": b"two"})
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert gets(server) == 2
    put(server, {"config.json": b"new"})  # of the same size
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert gets(server) == 3
    assert files_in(tmp_path) == {"config.json": b"new", "vocab.json": b"two"}


@pytest.mark.parametrize("damage", ["remove", "cut", "record"])
def test_what_is_no_longer_there_is_fetched_again(server: FaultServer, tmp_path: Path, damage: str) -> None:
    put(server, {"config.json": b"one"})
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    if damage == "remove":
        (tmp_path / "config.json").unlink()
    elif damage == "cut":
        (tmp_path / "config.json").write_bytes(b"o")
    else:
        (tmp_path / RECORD_NAME).write_text('["config.json", 3\nnot json\n[1, 2, 3]\n')
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert files_in(tmp_path) == {"config.json": b"one"}
    assert gets(server) == 2


def test_files_without_a_strong_version_are_always_fetched(server: FaultServer, tmp_path: Path) -> None:
    server.objects["model/config.json"] = Stored(b"one", 'W/"weak"')
    for _ in range(2):
        pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert gets(server) == 2
    assert files_in(tmp_path) == {"config.json": b"one"}


def test_a_body_that_is_cut_off_goes_on_where_it_stopped(server: FaultServer, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    put(server, {"x.bin": data})
    server.play(faults.short_body(1000), faults.error(503, Retry_After="0"))
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert files_in(tmp_path) == {"x.bin": data}
    assert server.ranges == [(0, len(data) - 1), (1000, len(data) - 1), (1000, len(data) - 1)]


def test_a_pull_that_failed_is_gone_on_with_by_the_next(server: FaultServer, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    put(server, {"x.bin": data})
    server.play(faults.short_body(1000), faults.error(403, "AccessDenied"))
    with pytest.raises(AccessDenied, match=r"model/x\.bin"):
        pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert "x.bin" not in files_in(tmp_path)  # never under its name before it is whole
    before = gets(server)
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert files_in(tmp_path) == {"x.bin": data}
    assert server.ranges[before:] == [(1000, len(data) - 1)]


def test_what_was_begun_of_another_version_is_not_gone_on_with(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"x.bin": b"a" * 5000})
    server.play(faults.short_body(1000), faults.error(403, "AccessDenied"))
    with pytest.raises(AccessDenied, match=r"model/x\.bin"):
        pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    put(server, {"x.bin": b"b" * 5000})
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    assert (tmp_path / "x.bin").read_bytes() == b"b" * 5000


def test_an_object_that_another_process_is_pulling_is_pulled_beside_it(
    server: FaultServer, tmp_path: Path
) -> None:
    data = b"abc" * 1000
    put(server, {"x.bin": data})
    server.play(faults.stall(10), faults.honest, faults.error(403, "AccessDenied"))
    raised: list[BaseException] = []

    def pull() -> None:
        try:
            pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
        except AccessDenied as error:
            raised.append(error)

    first = threading.Thread(target=pull)
    first.start()
    server.stalled.get()
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    server.stopped.set()  # the stalled connection ends; what came over it must not go into the whole file
    first.join()
    assert len(raised) == 1
    assert (tmp_path / "x.bin").read_bytes() == data


def listed(*keys: str) -> bytes:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        f"<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
        for key in keys
    )
    return list_answer(f"<IsTruncated>false</IsTruncated>{entries}")


@pytest.mark.parametrize("name", ["..", ".", "a\\b", f"{RECORD_NAME}/x"])
def test_a_key_that_would_lead_elsewhere_is_refused_by_name(
    server: FaultServer, tmp_path: Path, name: str
) -> None:
    server.list_script.append(listed("model/good.json", f"model/{name}"))
    with pytest.raises(BadKey) as caught:
        pull_files(FOLDER, tmp_path / "dst", s3_credentials=credentials_of(server))
    assert f"model/{name} has a key that cannot be a file's path" in str(caught.value)
    assert files_in(tmp_path) == {}
    assert gets(server) == 0


@pytest.mark.parametrize("folder", ["..", "", "."])
def test_a_folder_that_would_lead_elsewhere_is_refused_by_name(
    server: FaultServer, tmp_path: Path, folder: str
) -> None:
    server.list_script.append(listed(f"model/{folder}/x.json"))
    with pytest.raises(BadKey, match="cannot be a file's path"):
        pull_files(FOLDER, tmp_path / "dst", s3_credentials=credentials_of(server))
    assert files_in(tmp_path) == {}


def test_the_record_of_an_earlier_pull_is_no_file_of_the_model(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"config.json": b"{}", "deep/config.json": b"{}"})
    pull_files(FOLDER, tmp_path / "first", s3_credentials=credentials_of(server))
    pull_files(tmp_path / "first", tmp_path / "second")
    pull_files(tmp_path / "second", tmp_path / "third")  # which has a record too
    assert files_in(tmp_path / "third") == {"config.json": b"{}", "deep/config.json": b"{}"}


@pytest.mark.parametrize("pattern", ["*.json", ["*.json"], ("*.json",)])
def test_one_pattern_may_stand_alone_and_is_no_list_of_letters(
    server: FaultServer, tmp_path: Path, pattern: Any
) -> None:
    put(server, {"config.json": b"{}", "model.safetensors": b"weights"})
    pull_files(FOLDER, tmp_path / "allowed", pattern, s3_credentials=credentials_of(server))
    assert files_in(tmp_path / "allowed") == {"config.json": b"{}"}
    with ObjectStorageModel(FOLDER, tmp_path / "ignored", credentials_of(server)) as model:
        model.pull_files(ignore_pattern=pattern)
    assert files_in(tmp_path / "ignored") == {"model.safetensors": b"weights"}


def test_patterns_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="ignore_pattern holds 5, which is no text"):
        pull_files(FOLDER, tmp_path / "dst", ignore_pattern=[5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("dst", "error"),
    [("", BadSetting), (None, BadSetting), ("s3://bucket/model", BadSource), ("a\0b", BadSource)],
)
def test_a_destination_that_is_no_folder_of_this_machine_is_refused(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dst: Any, error: type[Exception]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        pull_files(FOLDER, dst, s3_credentials=credentials_of(server))
    with pytest.raises(error):
        ObjectStorageModel(FOLDER, dst)
    assert files_in(tmp_path) == {}
    assert server.log == []


def test_a_destination_may_begin_with_the_home_folder(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(server, {"config.json": b"{}"})
    pull_files(FOLDER, "~/model", s3_credentials=credentials_of(server))
    assert files_in(tmp_path) == {"model/config.json": b"{}"}


@pytest.mark.parametrize("use", [pull_files, lambda *given: ObjectStorageModel(*given).pull_files()])
@pytest.mark.parametrize(
    ("folder", "file", "said"),
    [
        ("dst/config.json", None, r"dst/config\.json cannot be written: Is a directory"),
        (None, "dst/deep", r"dst/deep cannot be written: (File exists|Not a directory)"),
        (None, "dst", r"dst cannot be written: (File exists|Not a directory)"),
    ],
)
def test_what_is_in_the_way_of_a_pull_is_named(
    server: FaultServer, tmp_path: Path, use: Any, folder: str | None, file: str | None, said: str
) -> None:
    if folder:
        (tmp_path / folder).mkdir(parents=True)
    if file:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    put(server, {"config.json": b"{}", "deep/config.json": b"{}"})
    given = (None, None, credentials_of(server)) if use is pull_files else (credentials_of(server),)
    with pytest.raises(CannotWrite, match=f"{said}.* remove it, or pull to another"):
        use(FOLDER, tmp_path / "dst", *given)


def test_a_disk_that_is_full_is_told_with_the_file_and_leaves_no_thread(
    server: FaultServer, tmp_path: Path
) -> None:
    put(server, {f"{number}.bin": bytes(1 << 20) for number in range(4)})
    program = """
import resource, signal, sys, threading
from headrace import S3Credentials, pull_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # a write beyond fails, as on a full disk
try:
    pull_files("s3://bucket/model", sys.argv[1], s3_credentials=S3Credentials(*sys.argv[2:4], endpoint=sys.argv[4]))
except Exception as error:
    print(type(error).__name__, error)
print([thread.name for thread in threading.enumerate()])
"""
    given = credentials_of(server)
    assert given.access_key_id and given.secret_access_key and given.endpoint
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            tmp_path / "dst",
            given.access_key_id,
            given.secret_access_key,
            given.endpoint,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    said, threads = run.stdout.splitlines()
    assert "CannotWrite" in said
    assert ".bin cannot be written: File too large. Check its permissions and the room on the disk" in said
    assert threads == "['MainThread']"


def test_no_thread_is_left_behind(server: FaultServer, tmp_path: Path) -> None:
    put(server, {f"{number}.json": b"x" for number in range(20)})
    before = set(threading.enumerate())
    pull_files(FOLDER, tmp_path, s3_credentials=credentials_of(server))
    left = [t.name for t in set(threading.enumerate()) - before if "small-reads" in t.name]
    assert left == []


def test_a_model_is_pulled_as_run_ais_users_do(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"weights"})
    dst = tmp_path / "model"
    with ObjectStorageModel(model_path=FOLDER, dst=str(dst), s3_credentials=credentials_of(server)) as model:
        model.pull_files(allow_pattern=["config*"])
        model.pull_files(ignore_pattern=["*.safetensors"])
    assert files_in(dst) == {"config.json": b"{}", "tokenizer.json": b"[]"}


def test_a_second_start_sees_what_changed_and_fetches_only_that(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"config.json": b"1", "tokenizer.json": b"2", "old.txt": b"3"})
    model = ObjectStorageModel(FOLDER, tmp_path / "model", credentials_of(server))
    model.pull_files()
    (tmp_path / "model" / "mine.txt").write_bytes(b"not pulled")
    put(server, {"config.json": b"4"})
    del server.objects["model/old.txt"]
    before = gets(server)
    with model:
        model.pull_files()
    assert gets(server) == before + 1
    assert files_in(tmp_path / "model") == {
        "config.json": b"4",
        "tokenizer.json": b"2",
        "mine.txt": b"not pulled",
    }


def test_nothing_pulled_is_an_error_that_gives_the_lock_back(server: FaultServer, tmp_path: Path) -> None:
    put(server, {"config.json": b"{}"})
    model = ObjectStorageModel(FOLDER, tmp_path / "model", credentials_of(server))

    def pull(pattern: str) -> None:
        with model:
            model.pull_files(allow_pattern=[pattern])

    with pytest.raises(NothingPulled, match=r"Nothing of s3://bucket/model was pulled"):
        pull("*.nothing")
    pull("*.json")
    assert files_in(tmp_path / "model") == {"config.json": b"{}"}


PROGRAM = """
import sys
from headrace import ObjectStorageModel
uri, dst = sys.argv[1:]
with ObjectStorageModel(uri, dst) as model:
    model.pull_files(ignore_pattern=["*.safetensors"])
    print(open(dst + "/config.json").read())
"""


def test_several_processes_share_one_folder(bucket: SeaweedStore, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "s3://pulled/model", str(tmp_path / "shared")]
    environment = {**os.environ, **bucket.environment()}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0] for process in processes] == ['{"a": 1}\n'] * 3
    expected = {"config.json", "1_Pooling/config.json", "1_Pooling/deep/er/größe.txt"}
    assert files_in(tmp_path / "shared").keys() == expected
    lines = (tmp_path / "shared" / RECORD_NAME).read_text().splitlines()
    assert sorted(json.loads(line)[0] for line in lines) == sorted(
        expected
    )  # each was fetched by one of them


def test_a_key_that_is_the_folder_of_another_is_refused_before_anything_is_written(
    server: FaultServer, tmp_path: Path
) -> None:
    put(server, {"a": b"1", "a/b/c": b"2", "d": b"3"})
    copy = tmp_path / "copy"
    with pytest.raises(BadKey, match=r"model/a cannot be a file: a/b/c lies below it"):
        pull_files("s3://bucket/model", copy, s3_credentials=credentials_of(server))
    assert not copy.exists()
    pull_files("s3://bucket/model", copy, None, ["a/*"], s3_credentials=credentials_of(server))
    assert (copy / "a").read_bytes() == b"1"


def test_a_name_that_the_file_system_does_not_take_is_told_with_the_way_out(
    server: FaultServer, tmp_path: Path
) -> None:
    put(server, {"x" * 300: b"1"})
    with pytest.raises(CannotWrite, match="Leave it out with --exclude"):
        pull_files("s3://bucket/model", tmp_path, s3_credentials=credentials_of(server))


def test_two_local_names_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    for name in (b"a\xfe", b"a\xff"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
    with pytest.raises(BadKey, match="Two files would be called"):
        pull_files(folder, tmp_path / "copy")


def noted(folder: Path) -> set[str]:
    """What the folder's own record says to lie there."""
    record = folder / RECORD_NAME
    return {json.loads(line)[0] for line in record.read_text().splitlines()} if record.exists() else set()


def test_what_came_whole_beside_a_file_that_failed_is_not_fetched_again(
    server: FaultServer, tmp_path: Path
) -> None:
    put(server, {"a": b"first in order", "b": b"second", "c": b"third"})
    came = threading.Event()

    def refuse_the_first(asked: faults.Asked) -> bytes | None:
        if not asked.path.endswith("/a"):
            return None
        while not {"b", "c"} <= noted(tmp_path):
            came.wait(0.01)
        return b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"

    server.refuse = refuse_the_first
    with pytest.raises(AccessDenied):
        pull_files("s3://bucket/model", tmp_path, s3_credentials=credentials_of(server))
    server.refuse = lambda _asked: None
    before = gets(server)
    pull_files("s3://bucket/model", tmp_path, s3_credentials=credentials_of(server))
    assert gets(server) == before + 1
    assert files_in(tmp_path) == {"a": b"first in order", "b": b"second", "c": b"third"}
