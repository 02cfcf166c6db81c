"""SafetensorsStreamer: Run:ai's calls, tensors that are the caller's, and an end to everything that it started."""

import gc
import itertools
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import BadHeader, MemoryLimitTooSmall, NotFound, S3Credentials, SafetensorsStreamer, Throttled
from headrace.errors import HeadraceError
from headrace.source.uri import BadSource
from headrace.stream.library.streamer import StreamerMisused
from headrace.stream.library.tensors import BadFramework
from headrace.stream.select import TensorParallel
from headrace.stream.variables import BadSetting
from tests.faults import server as faults
from tests.faults.opening import SECRET
from tests.faults.server import FaultServer, Stored, fault_server
from tests.profiles import examples
from tests.stream.safetensors_files import EVERY_KIND, Content, content, file_of
from tests.stream.streaming import FOLDER, credentials_of, data_of, put

pytestmark = pytest.mark.timeout(60)
ALL_OF_TORCH = {name: c for name, c in EVERY_KIND.items() if not c.dtype.startswith("F6_")}
SMALL = {f"t{number}": content("BF16", (4, 8), number) for number in range(6)}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


@pytest.fixture
def threads() -> Iterator[None]:
    """No thread of the library is left behind."""
    before = set(threading.enumerate())
    yield
    left = {
        t.name for t in set(threading.enumerate()) - before if t.is_alive() and "fault-server" not in t.name
    }
    assert not any(name.startswith(("fetch", "small-reads", "side-by-side")) for name in left), left


def taken(streamer: SafetensorsStreamer) -> dict[str, bytes]:
    return {name: data_of(tensor) for name, tensor in streamer.get_tensors()}


def content_of(tensors: dict[str, Content]) -> dict[str, bytes]:
    return {name: tensor.data for name, tensor in tensors.items()}


@pytest.mark.usefixtures("threads")
def test_run_ais_sequence_of_calls_gives_every_tensor(server: FaultServer) -> None:
    first, second = put(server, "1.safetensors", ALL_OF_TORCH, padding=1), put(server, "2.safetensors", SMALL)
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([first, second], credentials_of(server), "cpu", False)
        files = streamer.files_to_tensors_metadata
        assert {at: [t.name for t in metadata] for at, metadata in files.items()} == {
            0: list(ALL_OF_TORCH),
            1: list(SMALL),
        }
        assert [(t.shape, t.dtype, t.size_bytes) for t in files[1]] == [((4, 8), "BF16", 64)] * 6
        found = dict(streamer.get_tensors())
    assert {name: data_of(tensor) for name, tensor in found.items()} == content_of({**ALL_OF_TORCH, **SMALL})
    assert found["t0"].dtype == torch.bfloat16
    assert found["t0"].shape == (4, 8)
    assert found["scalar"].shape == ()


def test_one_file_is_streamed_with_numpy(server: FaultServer) -> None:
    path = put(server, "model.safetensors", EVERY_KIND)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, s3_credentials=credentials_of(server), framework="numpy")
        found = dict(streamer.get_tensors())
    assert {name: tensor.tobytes() for name, tensor in found.items()} == content_of(EVERY_KIND)
    assert found["of.BF16"].dtype.name == "bfloat16"
    assert found["of.F6_E2M3"].shape == (3, 6)
    assert found["empty.inside"].shape == (2, 0, 3)


def test_each_tensor_lies_in_aligned_memory_of_its_own(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {**ALL_OF_TORCH, "large": content("F32", (600, 600))}, padding=3)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server))
        found = [tensor for _, tensor in streamer.get_tensors() if tensor.numel()]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.untyped_storage().nbytes()) for t in found)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for tensor in found:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("rows", [3, 600])  # from the heap, and a mapping of its own
def test_a_tensor_that_is_dropped_is_freed_while_others_live(server: FaultServer, rows: int) -> None:
    path = put(server, "model.safetensors", {name: content("F32", (rows, 600)) for name in "abc"})
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), framework="numpy")
        kept: dict[str, Any] = {}
        bases: dict[str, Any] = {}
        for name, array in streamer.get_tensors():
            base = array
            while isinstance(base.base, np.ndarray):
                base = base.base
            bases[name] = weakref.ref(base)
            del base
            if name != "b":
                kept[name] = array
            del array
            gc.collect()
            if name == "b":
                assert bases[name]() is None
        assert [name for name, base in bases.items() if base() is not None] == ["a", "c"]


def test_tensors_outlive_the_streamer_and_may_be_written_to(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server))
        found = dict(streamer.get_tensors())
    del streamer
    gc.collect()
    found["t0"].fill_(0)
    assert {name: data_of(tensor) for name, tensor in found.items()} == {**content_of(SMALL), "t0": bytes(64)}


def test_files_come_from_several_places_at_once(server: FaultServer, tmp_path: Path) -> None:
    local = tmp_path / "of a folder.safetensors"
    local.write_bytes(file_of({"local": content("U8", (7,))}))
    paths = [put(server, "1.safetensors", SMALL), str(local), local.as_uri(), local]
    server.objects["else/where.safetensors"] = Stored.of(file_of({"else": content("F64", (2,))}))
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(
            [*paths, "S3://bucket/else/where.safetensors"], credentials_of(server), concurrency=2
        )
        found = [(name, data_of(tensor)) for name, tensor in streamer.get_tensors()]
    local_data, other = content("U8", (7,)).data, content("F64", (2,)).data
    expected = [*content_of(SMALL).items(), *[("local", local_data)] * 3, ("else", other)]
    assert sorted(found) == sorted(expected)


def test_an_error_of_one_place_of_several_names_its_object(server: FaultServer, tmp_path: Path) -> None:
    local = tmp_path / "x.safetensors"
    local.write_bytes(file_of({"local": content("U8", (7,))}))
    path = put(server, "1.safetensors", {"t": content("U8", (400_000,))})
    server.play(faults.honest, *[faults.error(403, "AccessDenied")] * 9)
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([path, local], credentials_of(server))
        with pytest.raises(HeadraceError, match=r"s3://bucket/model/1\.safetensors"):
            taken(streamer)


def test_any_object_with_run_ais_fields_is_taken_for_credentials(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    own = credentials_of(server)
    theirs = SimpleNamespace(
        access_key_id=own.access_key_id,
        secret_access_key=own.secret_access_key,
        session_token="a-session-token",
        region_name="eu-central-7",
        endpoint=server.url,
    )
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, theirs)
        assert taken(streamer) == content_of(SMALL)
    assert len(server.log) >= 2
    for asked in server.log:
        assert asked.headers["x-amz-security-token"] == "a-session-token"
        assert "/eu-central-7/s3/aws4_request" in asked.headers["authorization"]


def test_secrets_are_not_shown() -> None:
    shown = repr(S3Credentials("AKID", SECRET, "session-token-1", "eu-1", "http://host"))
    assert SECRET not in shown
    assert "session-token-1" not in shown
    assert "AKID" in shown


def test_only_the_tensors_that_are_asked_for_are_read_in_that_order(server: FaultServer) -> None:
    large = {name: content("U8", (300_000,), seed) for seed, name in enumerate("abcd")}
    path = put(server, "model.safetensors", large)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), names=["d", "b"], concurrency=1)
        assert list(taken(streamer).items()) == [("d", large["d"].data), ("b", large["b"].data)]
        assert [t.name for t in streamer.files_to_tensors_metadata[0]] == ["d", "b"]
        progress = streamer.progress()
    assert progress is not None
    assert progress.bytes_done == progress.bytes_total == 600_000
    _header, *reads = server.ranges
    assert sum(last - first + 1 for first, last in reads) == 600_000


def test_slices_and_a_ranks_parts_arrive_cut(server: FaultServer) -> None:
    model = {
        "rows": content("I32", (8, 6)),
        "columns": content("I32", (8, 6), 1),
        "part": content("I32", (8,), 2),
    }
    path = put(server, "model.safetensors", model, padding=1)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(
            path,
            credentials_of(server),
            framework="numpy",
            slices={"part": slice(-2, None)},
            tensor_parallel=TensorParallel(1, 2, {"rows": 0, "columns": 1, "part": 0}),
        )
        found = dict(streamer.get_tensors())
    whole = {name: np.frombuffer(c.data, np.int32).reshape(c.shape) for name, c in model.items()}
    assert np.array_equal(found["rows"], whole["rows"][4:])
    assert np.array_equal(found["columns"], whole["columns"][:, 3:])
    assert np.array_equal(found["part"], whole["part"][-2:])


def test_iterating_may_stop_and_go_on(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server))
        first = dict(itertools.islice(streamer.get_tensors(), 2))
        rest = dict(streamer.get_tensors())
        assert {name: data_of(t) for name, t in {**first, **rest}.items()} == content_of(SMALL)
        assert len(first) + len(rest) == len(SMALL)
        assert list(streamer.get_tensors()) == []


def test_one_streamer_streams_one_file_after_another(server: FaultServer) -> None:
    paths = [put(server, f"{name}.safetensors", {name: tensor}) for name, tensor in SMALL.items()]
    found: dict[str, bytes] = {}
    with SafetensorsStreamer() as streamer:
        for path in paths:
            streamer.stream_file(path, credentials_of(server))
            found.update(taken(streamer))
            assert list(streamer.files_to_tensors_metadata) == [0]
    assert found == content_of(SMALL)


def test_new_files_before_the_last_were_taken_are_refused(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server))
        next(streamer.get_tensors())
        with pytest.raises(StreamerMisused, match="not all taken"):
            streamer.stream_file(path, credentials_of(server))
        assert len(taken(streamer)) == len(SMALL) - 1


def test_tensors_without_files_and_files_after_the_end_are_refused(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer:
        with pytest.raises(StreamerMisused, match="Nothing is being streamed"):
            streamer.get_tensors()
        assert streamer.progress() is None
    with pytest.raises(StreamerMisused, match="closed"):
        streamer.stream_file(path, credentials_of(server))
    with pytest.raises(StreamerMisused, match="closed"):
        streamer.get_tensors()
    assert server.log == []


@pytest.mark.parametrize("arrived", [False, True])
def test_going_on_after_the_end_is_an_error_and_not_memory_that_was_given_up(
    server: FaultServer, arrived: bool
) -> None:
    path = put(server, "model.safetensors", {f"t{at}": content("U8", (5000,), at) for at in range(3)})
    server.play(faults.honest, faults.honest, *([] if arrived else [faults.stall(1000)]))
    streamer = SafetensorsStreamer()
    streamer.stream_file(path, credentials_of(server), framework="numpy", concurrency=1, chunk_bytes=5000)
    tensors = streamer.get_tensors()
    next(tensors)
    if arrived:
        while (progress := streamer.progress()) is not None and progress.bytes_done < progress.bytes_total:
            pass
    streamer.close()
    with pytest.raises(StreamerMisused, match="closed when 1 of 3 tensors were taken"):
        next(tensors)


@pytest.mark.parametrize("shared", [False, True])
def test_a_streamer_that_is_forgotten_ends_its_threads(server: FaultServer, shared: bool) -> None:
    path = put(server, "model.safetensors", {f"t{at}": content("U8", (5000,), at) for at in range(6)})
    before = set(threading.enumerate())

    def forget() -> list[threading.Thread]:
        streamer = SafetensorsStreamer()
        # The next waits for room. Without a group a shared load is one like any other.
        streamer.stream_file(path, credentials_of(server), is_distributed=shared, memory_limit=5000)
        next(streamer.get_tensors())
        return [t for t in set(threading.enumerate()) - before if t.name.startswith("fetch")]

    threads = forget()
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert [t.name for t in threads if t.is_alive()] == []


def test_no_files_and_files_without_tensors_give_nothing(server: FaultServer) -> None:
    empty = put(server, "none.safetensors", {}, metadata={"only": "metadata"})
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([])
        assert list(streamer.get_tensors()) == []
        assert streamer.files_to_tensors_metadata == {}
        streamer.stream_file(empty, credentials_of(server))
        assert list(streamer.get_tensors()) == []
        assert streamer.files_to_tensors_metadata == {0: []}


def test_a_file_that_is_missing_or_broken_is_told_before_anything_is_streamed(server: FaultServer) -> None:
    good = put(server, "good.safetensors", SMALL)
    server.objects["model/bad.safetensors"] = Stored.of(b"\xff" * 100)
    with SafetensorsStreamer() as streamer:
        with pytest.raises(NotFound, match=r"s3://bucket/model/gone\.safetensors"):
            streamer.stream_files([good, f"{FOLDER}/gone.safetensors"], credentials_of(server))
        with pytest.raises(BadHeader, match=r"s3://bucket/model/bad\.safetensors"):
            streamer.stream_files([f"{FOLDER}/bad.safetensors", good], credentials_of(server))
        with pytest.raises(BadSource):
            streamer.stream_file("ftp://host/model.safetensors")
        streamer.stream_file(good, credentials_of(server))  # what failed left nothing behind
        assert taken(streamer) == content_of(SMALL)


def test_a_header_longer_than_the_first_read_is_read_to_its_end(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL, padding=300_000)
    server.play(faults.honest, faults.short_body(1000))
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server))
        assert taken(streamer) == content_of(SMALL)


def test_a_header_of_the_largest_numbers_is_refused_before_memory_is_taken(server: FaultServer) -> None:
    huge = b'{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}'
    server.objects["model/x.safetensors"] = Stored.of(len(huge).to_bytes(8, "little") + huge)
    with SafetensorsStreamer() as streamer, pytest.raises(BadHeader, match="cut off"):
        streamer.stream_file(f"{FOLDER}/x.safetensors", credentials_of(server))


@pytest.mark.usefixtures("threads")
def test_leaving_early_ends_every_thread(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {"t": content("U8", (400_000,))})
    server.play(faults.honest, faults.stall(1000), faults.stall(1000))
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), chunk_bytes=100_000)
        server.stalled.get()


@pytest.mark.usefixtures("threads")
def test_an_exception_of_the_consumer_ends_every_thread(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {"a": content("U8", (10,)), "t": content("U8", (400_000,))})
    server.play(faults.honest, faults.honest, faults.stall(1000))

    def consume() -> None:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path, credentials_of(server), concurrency=1, chunk_bytes=4096)
            for _ in streamer.get_tensors():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()


@pytest.mark.usefixtures("threads")
def test_an_interrupt_while_waiting_for_bytes_ends_every_thread(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {"t": content("U8", (400_000,))})
    server.play(faults.honest, faults.stall(1000))
    main = threading.main_thread().ident
    assert main is not None
    streaming = threading.Event()

    def interrupt() -> None:
        server.stalled.get()
        streaming.wait()
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()

    def consume() -> None:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path, credentials_of(server), concurrency=1)
            streaming.set()
            taken(streamer)

    with pytest.raises(KeyboardInterrupt):
        consume()
    thread.join()


@pytest.mark.usefixtures("threads")
def test_an_error_in_the_middle_is_raised_to_the_consumer_and_ends_the_load(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {"a": content("U8", (10,)), "t": content("U8", (400_000,))})
    replaced = Stored.of(file_of(SMALL))
    server.play(faults.honest, faults.honest, faults.replace_first("model/model.safetensors", replaced))
    streamer = SafetensorsStreamer()
    streamer.stream_file(path, credentials_of(server), concurrency=1, chunk_bytes=300_000)
    with pytest.raises(HeadraceError, match=r"s3://bucket/model/model\.safetensors"):
        taken(streamer)
    with pytest.raises(StreamerMisused):
        streamer.get_tensors()
    streamer.stream_file(path, credentials_of(server))  # the new version, whole
    assert taken(streamer) == content_of(SMALL)
    streamer.close()


def test_a_store_that_never_recovers_is_given_up_with_its_own_error(server: FaultServer) -> None:
    path = put(server, "model.safetensors", SMALL)
    server.refuse = lambda asked: faults.error_answer(503, "SlowDown", Retry_After="0")
    with SafetensorsStreamer() as streamer, pytest.raises(Throttled, match=r"model\.safetensors"):
        streamer.stream_file(path, credentials_of(server))


SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@settings(max_examples=examples(15, 200))
@given(SIZES, st.integers(0, 2), st.integers(4096, 8192), st.integers(1, 3))
def test_no_more_than_the_limit_is_read_ahead_of_the_consumer(
    sizes: list[int], extra: int, chunk_bytes: int, concurrency: int
) -> None:
    tensors = {f"t{at}": content("U8", (size * 40,), at) for at, size in enumerate(sizes)}
    limit = max(sizes) * 40 * (1 + extra)
    with fault_server({}) as server, SafetensorsStreamer() as streamer:
        path = put(server, "model.safetensors", tensors)
        streamer.stream_file(
            path,
            credentials_of(server),
            memory_limit=limit,
            chunk_bytes=chunk_bytes,
            concurrency=concurrency,
        )
        got = 0
        for name, tensor in streamer.get_tensors():
            assert data_of(tensor) == tensors[name].data
            got += len(tensors[name].data)
            progress = streamer.progress()
            assert progress is not None
            assert progress.bytes_done <= got + limit
        assert got == sum(sizes) * 40


def test_a_consumer_that_does_not_take_holds_the_transfer_up(server: FaultServer) -> None:
    tensors = {name: content("U8", (100_000,), at) for at, name in enumerate("abcdef")}
    path = put(server, "model.safetensors", tensors)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), memory_limit=200_000, concurrency=4)
        iterator = streamer.get_tensors()
        next(iterator)
        next(iterator)  # both of the first two are there: of the others at most two are asked for
        asked_for = {first for first, _ in server.ranges}
        assert len(asked_for) <= 1 + 4
        assert len(dict(iterator)) == 4


def test_a_limit_of_nothing_is_the_largest_tensor(server: FaultServer) -> None:
    path = put(server, "model.safetensors", ALL_OF_TORCH)
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), memory_limit=0)
        assert taken(streamer) == content_of(ALL_OF_TORCH)


def test_a_limit_smaller_than_a_tensor_is_refused_with_its_name_and_size(server: FaultServer) -> None:
    path = put(server, "model.safetensors", {**SMALL, "wide": content("F32", (100,))})
    with SafetensorsStreamer() as streamer:
        with pytest.raises(
            MemoryLimitTooSmall, match="memory_limit is 399 bytes, but tensor wide alone has 400"
        ):
            streamer.stream_file(path, credentials_of(server), memory_limit=399)
        streamer.stream_file(path, credentials_of(server), memory_limit=399, names=SMALL)
        assert taken(streamer) == content_of(SMALL)


def test_run_ais_variables_count_where_no_argument_does(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(server, "model.safetensors", {"a": content("U8", (20_000,))})
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "5000")
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "1")
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "19999")
    with SafetensorsStreamer() as streamer:
        with pytest.raises(MemoryLimitTooSmall, match="RUNAI_STREAMER_MEMORY_LIMIT is 19,999 bytes"):
            streamer.stream_file(path, credentials_of(server))
        streamer.stream_file(path, credentials_of(server), memory_limit=-1)
        taken(streamer)
    assert max(last - first + 1 for first, last in server.ranges[2:]) == 5000
    assert len({asked.connection for asked in server.log[2:]}) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_limit": -2}, "memory_limit is -2"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"chunk_bytes": 1}, "chunk_bytes is 1"),
        ({"memory_limit": True}, "memory_limit is True"),
        ({"rate_limit_mb_s": 0}, "rate_limit_mb_s is 0"),
        ({"deadline_s": -1.5}, "deadline_s is -1.5"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    server: FaultServer, options: dict[str, Any], said: str
) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer, pytest.raises(BadSetting, match=said):
        streamer.stream_file(path, credentials_of(server), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"framework": "tensorflow"}, "'tensorflow' is not known"),
        ({"framework": "numpy", "device": "cuda"}, "cannot be on device 'cuda'"),
    ],
)
def test_a_form_that_tensors_cannot_have_is_refused(
    server: FaultServer, options: dict[str, Any], said: str
) -> None:
    path = put(server, "model.safetensors", SMALL)
    with SafetensorsStreamer() as streamer, pytest.raises(BadFramework, match=said):
        streamer.stream_file(path, credentials_of(server), **options)


def test_a_dtype_that_torch_lacks_is_refused_with_the_tensors_name(server: FaultServer) -> None:
    path = put(server, "model.safetensors", EVERY_KIND)
    with SafetensorsStreamer() as streamer:
        with pytest.raises(BadFramework, match=r"Tensor of\.F6_E2M3 has the dtype F6_E2M3"):
            streamer.stream_file(path, credentials_of(server))
        streamer.stream_file(path, credentials_of(server), names=ALL_OF_TORCH)
        assert taken(streamer) == content_of(ALL_OF_TORCH)


def test_an_unknown_argument_is_an_error_in_the_call(server: FaultServer) -> None:
    with SafetensorsStreamer() as streamer, pytest.raises(TypeError):
        streamer.stream_file("x", memory_limits=3)  # type: ignore[call-arg]


def test_threads_that_share_a_streamer_get_each_tensor_once(server: FaultServer) -> None:
    path = put(server, "x.safetensors", {f"t{at}": content("U8", (at + 1,), at) for at in range(40)})
    together = threading.Barrier(4)
    found: list[str] = []
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, credentials_of(server), framework="numpy", chunk_bytes=4096)

        def take() -> None:
            together.wait()
            found.extend(name for name, _ in streamer.get_tensors())

        takers = [threading.Thread(target=take) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
    assert sorted(found) == sorted(f"t{at}" for at in range(40))


def test_what_ends_a_load_ends_it_for_every_thread_that_takes_tensors(server: FaultServer) -> None:
    path = put(server, "x.safetensors", SMALL)
    waiting = threading.Event()
    ended: list[HeadraceError] = []

    def refuse(exchange: faults.Exchange) -> None:
        waiting.wait()
        faults.error(403, "AccessDenied")(exchange)

    with SafetensorsStreamer() as streamer:
        server.script.extend([faults.honest, refuse])
        streamer.stream_file(path, credentials_of(server), framework="numpy")

        def take() -> None:
            try:
                list(streamer.get_tensors())
            except HeadraceError as error:
                ended.append(error)

        takers = [threading.Thread(target=take) for _ in range(3)]
        for taker in takers:
            taker.start()
        waiting.set()
        for taker in takers:
            taker.join()
    assert sorted(type(error).__name__ for error in ended) == ["AccessDenied", *["StreamerMisused"] * 2]
