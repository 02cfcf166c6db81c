"""A model's folder on a web server, which has no listing: the names that a model can have are looked up."""

import json
import logging
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.cache import MetadataCache
from headrace.source.files import MANIFEST_NAME, choose_metadata
from headrace.source.objects import Listing
from headrace.source.uri import parse_source
from headrace.source.weight_files import choose_weights
from headrace.store.base import open_store, read_range, read_whole
from headrace.store.errors import AccessDenied, NotFound, TransientError, Unsupported
from headrace.store.web.listing import MAX_SHARDS, _spread, has_senses, shards_of
from headrace.store.web.settings import resolve_web_settings
from headrace.store.web.store import HttpStore
from tests.static_server import StaticServer, static_server

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
DATA = random.Random(9).randbytes(700_000)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in shards, below a prefix with a blank."""
    model = tmp_path / "some models" / "qwen"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text(json.dumps({"filler": "x" * 50_000}))
    (model / "unknown.txt").write_text("not asked for")
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(SHARDS * 2)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in SHARDS:
        (model / name).write_bytes(DATA)
    return model


@pytest.fixture
def server(folder: Path) -> Iterator[StaticServer]:
    with static_server(folder.parents[1]) as running:
        yield running


def store_of(server: StaticServer, **variables: str) -> HttpStore:
    source = parse_source(f"{server.url}/some models/qwen/")
    return HttpStore(source, resolve_web_settings(variables), stall_timeout_s=10)


def names(listing: Listing) -> list[str]:
    return [item.name for item in listing.objects]


def test_the_metadata_and_the_indexs_shards_are_found(server: StaticServer, folder: Path) -> None:
    listing = store_of(server).list()
    assert names(listing) == sorted(
        ["config.json", "model.safetensors.index.json", "tokenizer.json", *SHARDS]
    )
    for item in listing.objects:
        assert item.size_bytes == (folder / item.name).stat().st_size
        assert item.version and item.modified_s is not None
    assert ("/some%20models/qwen/config.json", 206) in server.asked


def test_nothing_is_asked_for_twice(server: StaticServer) -> None:
    store_of(server).list()
    paths = [path for path, _ in server.asked]
    assert len(paths) == len(set(paths))


def test_every_file_is_read_back(server: StaticServer, folder: Path) -> None:
    store = store_of(server)
    reader = store.open_reader()
    for item in store.list().objects:
        assert read_whole(reader, item) == (folder / item.name).read_bytes()
        assert read_range(reader, item, 1, 1) == (folder / item.name).read_bytes()[1:2]


def test_what_the_look_up_has_brought_is_not_asked_for_again(server: StaticServer, folder: Path) -> None:
    store = store_of(server)
    listing = store.list()
    before = len(server.asked)
    config, shard = listing.find("config.json"), listing.find(SHARDS[0])
    assert config is not None and shard is not None
    reader = store.open_reader()
    assert read_whole(reader, config) == b"{}"
    assert read_range(reader, shard, 8, 1_000) == DATA[8:1_008]
    assert len(server.asked) == before
    assert read_whole(reader, shard) == DATA


def test_readers_that_were_opened_before_the_listing_know_it_too(server: StaticServer) -> None:
    store = store_of(server)
    reader = store.open_reader()
    config = store.list().find("config.json")
    assert config is not None
    before = len(server.asked)
    assert read_whole(reader, config) == b"{}"
    assert len(server.asked) == before


def test_a_replaced_object_is_not_taken_from_what_was_brought_before(
    server: StaticServer, folder: Path
) -> None:
    store = store_of(server)
    store.list()
    (folder / "config.json").write_text("[]")
    config = store.look_up("config.json", 1).item
    assert read_whole(store.open_reader(), config) == b"[]"
    listed = store.list().find("config.json")
    assert listed == config
    assert read_whole(store.open_reader(), listed) == b"[]"


def test_a_single_file_is_found_by_its_usual_name(server: StaticServer, folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(DATA)
    listing = store_of(server).list()
    (weights,) = choose_weights(listing, "here", None)
    assert weights.name == "model.safetensors"


def test_a_manifest_of_checksums_is_found(server: StaticServer, folder: Path) -> None:
    (folder / MANIFEST_NAME).write_text("{}")
    assert MANIFEST_NAME in names(store_of(server).list())


def test_a_tokenizer_alone_is_found(server: StaticServer, folder: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        (folder / name).unlink()
    chosen = choose_metadata(store_of(server).list(), "here", tokenizer_only=True)
    assert [item.name for item in chosen.metadata] == ["tokenizer.json"]


def test_an_index_longer_than_the_first_read_is_read_on(server: StaticServer, folder: Path) -> None:
    weight_map = {f"model.layers.{number}.weight": SHARDS[number % 3] for number in range(10_000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    store = store_of(server)
    listing = store.list()
    assert set(SHARDS) <= set(names(listing))
    index = listing.find("model.safetensors.index.json")
    assert index is not None
    assert index.size_bytes > 256 << 10
    assert read_whole(store.open_reader(), index) == (folder / "model.safetensors.index.json").read_bytes()


def test_names_in_an_index_that_lead_elsewhere_are_never_asked_for(
    server: StaticServer, folder: Path
) -> None:
    strange = ["../secret", "/etc/passwd", "sub/x.safetensors", "", ".", ".."]
    weight_map = {f"t{number}": name for number, name in enumerate([*strange, SHARDS[0]])}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert SHARDS[0] in names(store_of(server).list())
    assert not any("secret" in path or "passwd" in path or "sub/" in path for path, _ in server.asked)


def test_an_index_of_too_many_shards_is_not_followed_to_its_end() -> None:
    index = json.dumps(
        {"weight_map": {f"t{number}": f"{number}.safetensors" for number in range(MAX_SHARDS + 9)}}
    )
    assert len(shards_of(index.encode(), "here")) == MAX_SHARDS


def test_a_server_that_hides_what_is_not_there_behind_403_is_believed(server: StaticServer) -> None:
    server.hidden_status = 403
    assert "config.json" in names(store_of(server).list())


def test_where_everything_is_forbidden_it_is_told(server: StaticServer, folder: Path) -> None:
    server.hidden_status = 403
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(AccessDenied):
        store_of(server).list()


def test_where_nothing_is_there_it_is_told_how_a_folder_is_found(server: StaticServer) -> None:
    with pytest.raises(NotFound, match=r"None of config\.json") as caught:
        HttpStore(parse_source(f"{server.url}/nowhere"), resolve_web_settings({})).list()
    assert "no listing" in caught.value.remedy


def test_a_token_is_sent_with_every_look_up(server: StaticServer) -> None:
    server.token = "open-sesame"
    assert len(store_of(server, HEADRACE_HTTP_TOKEN="open-sesame").list().objects) == 6


def test_an_error_of_one_look_up_is_the_listings(server: StaticServer) -> None:
    server.hidden_status = 500
    with pytest.raises(TransientError):
        store_of(server).list()


def test_without_ranges_small_files_can_be_read_and_weights_are_refused_with_the_reason(
    server: StaticServer,
) -> None:
    server.ranges = False
    store = store_of(server)
    listing = store.list()
    tokenizer, shard = listing.find("tokenizer.json"), listing.find(SHARDS[0])
    assert tokenizer is not None and shard is not None
    reader = store.open_reader()
    assert len(read_whole(reader, tokenizer)) == tokenizer.size_bytes
    with pytest.raises(Unsupported, match="the whole object was sent") as caught:
        read_range(reader, shard, 400_000, 1_000)
    assert "ranged reads" in caught.value.remedy


def test_the_cache_knows_the_folder_by_its_address_without_more(server: StaticServer) -> None:
    store = store_of(server)
    assert store.identity == f"{server.url}/some%20models/qwen"
    chosen = choose_metadata(store.list(), "here")
    cache = MetadataCache.of(store.identity, chosen.metadata)
    reader = store.open_reader()
    files = {item.name: read_whole(reader, item) for item in chosen.metadata}
    cache.write(files)
    again = choose_metadata(store_of(server).list(), "here")
    assert MetadataCache.of(store_of(server).identity, again.metadata).read() == files


def test_what_was_brought_is_given_back_once_it_was_taken(server: StaticServer) -> None:
    store = store_of(server)
    shard = store.list().find(SHARDS[0])
    assert shard is not None
    reader = store.open_reader()
    before = len(server.asked)
    for _ in range(2):
        assert read_range(reader, shard, 0, 1_000) == DATA[:1_000]
    assert len(server.asked) == before + 1


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        ("http://models.example/m", True),
        ("https://models.example/m", False),
        ("http://127.0.0.1:9/m", False),
        ("http://[::1]:9/m", False),
    ],
)
def test_a_token_that_travels_in_the_open_is_warned_of(
    address: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        HttpStore(parse_source(address), resolve_web_settings({"HEADRACE_HTTP_TOKEN": "open-sesame"}))
    assert ("sent unencrypted" in caplog.text) == warns
    assert "open-sesame" not in caplog.text


def test_a_web_servers_store_is_found_by_its_source(server: StaticServer) -> None:
    assert isinstance(open_store(parse_source(server.url)), HttpStore)


def test_the_settings_are_told_without_the_token(server: StaticServer) -> None:
    told = store_of(server, HEADRACE_HTTP_TOKEN="hush-hush").describe()
    assert [(each.name, each.value, each.origin) for each in told] == [
        ("endpoint", server.url, "the model's address"),
        ("principal", "a token", "HEADRACE_HTTP_TOKEN"),
    ]
    assert store_of(server).describe()[1].value == "anonymous"


def test_after_an_interrupt_nothing_more_is_asked() -> None:
    asked: list[str] = []
    begun, told, go_on = threading.Semaphore(0), threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None
    before = set(threading.enumerate())

    def work(name: str) -> tuple[None, tuple[str, ...]]:
        asked.append(name)
        begun.release()
        go_on.wait()
        return None, ()

    def interrupt() -> None:
        for _ in range(8):
            begun.acquire()
        # One signal may come just before the main thread begins to wait, which it then does not see.
        while not told.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    def hear(*_given: object) -> None:
        if not told.is_set():
            told.set()
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, hear)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        _spread(work, map(str, range(20)))
    go_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    signal.signal(signal.SIGINT, handler)
    assert len(asked) == 8


def asked_names(server: StaticServer) -> set[str]:
    return {path.rpartition("/")[2] for path, _ in server.asked}


def test_a_vocabulary_is_looked_up_only_where_there_is_no_tokenizer_json(
    server: StaticServer, folder: Path
) -> None:
    store_of(server).list()
    assert not asked_names(server) & {"tokenizer.model", "vocab.json", "qwen.tiktoken"}
    (folder / "tokenizer.json").unlink()
    (folder / "qwen.tiktoken").write_text("IQ== 0\n")
    assert "qwen.tiktoken" in names(store_of(server).list())


def test_a_vocabulary_is_found_where_what_is_not_there_is_forbidden(
    server: StaticServer, folder: Path
) -> None:
    server.hidden_status = 403
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    assert "tokenizer.model" in names(store_of(server).list())


def test_a_text_models_folder_is_not_asked_for_processors(server: StaticServer, folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 320, "model_type": "qwen2"}))
    listing = store_of(server).list()
    assert "preprocessor_config.json" not in asked_names(server) | set(names(listing))


@pytest.mark.parametrize("field", ["vision_config", "audio_config", "image_token_index"])
def test_the_processors_of_a_model_that_sees_or_hears_are_found(
    server: StaticServer, folder: Path, field: str
) -> None:
    (folder / "preprocessor_config.json").write_text("{}")
    filler = "x" * 50_000  # longer than what a look-up brings
    (folder / "config.json").write_text(json.dumps({"filler": filler, field: {}}))
    store = store_of(server)
    listing = store.list()
    assert "preprocessor_config.json" in names(listing)
    assert "preprocessor_config.json" in {item.name for item in choose_metadata(listing, "").metadata}
    (config,) = [item for item in listing.objects if item.name == "config.json"]
    assert read_whole(store.open_reader(), config) == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("config", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_a_config_that_is_none_is_left_to_who_reads_it(config: bytes) -> None:
    assert not has_senses(config)
