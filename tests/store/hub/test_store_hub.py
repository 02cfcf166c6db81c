"""The hub: one commit, listed by one request; weights by ranges from where the hub leads to."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import headrace
from headrace.store.base import list_below, read_range, read_whole
from headrace.store.errors import AccessDenied, BadEndpoint, Changed, NotFound, TransientError, Unsupported
from headrace.stream.checkpoint.model_listing import list_with_templates
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.transfer.transfer import Transfer
from tests.hub_imitation import QUERY, Hub, hub_imitation, oid_of
from tests.store.hub_opening import FILES, NAME, TOKEN, WEIGHTS, store_of, weights_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_imitation() as running:
        running.tokens.add(TOKEN)
        running.repository(NAME).commit(FILES)
        yield running


# ---- listing


def test_one_request_tells_commit_names_sizes_and_versions(hub: Hub) -> None:
    listing = store_of(hub).list()
    commit = hub.repositories[NAME].branches["main"]
    assert [(item.name, item.size_bytes, item.version, item.key) for item in listing.objects] == [
        (name, len(FILES[name]), oid_of(name, FILES[name]), f"{commit}/{name}")
        for name in ("README.md", "config.json", "model.safetensors")
    ]
    assert listing.folders == ("original", "templates")
    assert hub.targets("hub") == [f"/api/models/{NAME}/revision/main"]


def test_what_lies_below_is_of_the_same_commit_without_another_request(hub: Hub) -> None:
    store = store_of(hub)
    listed = store.list().objects[0].key.partition("/")[0]
    hub.repository(NAME).commit({"templates/new.jinja": b""})
    below = list(list_below(store))
    assert {item.name for item in below} == set(FILES)
    assert {item.key.partition("/")[0] for item in below} == {listed}
    assert [item.name for item in list_below(store, "templates")] == ["templates/tool.jinja"]
    assert len(hub.asked) == 1


def test_templates_in_their_folders_are_found(hub: Hub) -> None:
    assert list_with_templates(store_of(hub)).find("templates/tool.jinja") is not None


def test_a_second_listing_sees_a_new_commit(hub: Hub) -> None:
    store = store_of(hub)
    before = store.list()
    hub.repository(NAME).commit({"config.json": b"{}"})
    after = store.list()
    assert (before.find("config.json"), after.find("config.json")) != (None, None)
    assert before.find("config.json") != after.find("config.json")


def test_a_folder_of_the_repository_is_a_model_of_its_own(hub: Hub) -> None:
    store = store_of(hub, f"hf://{NAME}/original")
    assert [item.name for item in store.list().objects] == ["a b#1.safetensors"]
    assert [item.name for item in list_below(store)] == ["a b#1.safetensors"]
    assert read_whole(store.open_reader(), store.list().objects[0]) == WEIGHTS[:1000]


def test_a_folder_that_is_not_there_names_what_is(hub: Hub) -> None:
    with pytest.raises(NotFound, match=r"there is: original/, templates/, README\.md"):
        store_of(hub, f"hf://{NAME}/nothing").list()


def test_a_folder_that_is_not_there_is_told_of_the_tree_too(hub: Hub) -> None:
    hub.sizes_told = False
    with pytest.raises(NotFound, match="no such file or folder at this revision"):
        store_of(hub, f"hf://{NAME}/nothing").list()


def test_a_file_is_no_folder(hub: Hub) -> None:
    with pytest.raises(NotFound, match="one object, not a folder") as caught:
        store_of(hub, f"hf://{NAME}/config.json").list()
    assert "path after the repository's name" in caught.value.remedy


@pytest.mark.parametrize("revision", ["v1", "refs/pr/3", "feature/x"])
def test_a_revision_is_asked_for_as_it_is_written(hub: Hub, revision: str) -> None:
    hub.repository(NAME).commit({"config.json": b"{}", "model.safetensors": b"1"}, revision)
    store = store_of(hub, f"hf://{NAME}@{revision.replace('/', '%2F')}")
    item = store.list().find("config.json")
    assert item is not None
    assert read_whole(store.open_reader(), item) == b"{}"


def test_a_commit_is_a_revision_too(hub: Hub) -> None:
    first = hub.repositories[NAME].branches["main"]
    hub.repository(NAME).commit({"config.json": b"{}"})
    item = store_of(hub, f"hf://{NAME}@{first}").list().find("config.json")
    assert item is not None
    assert item.version == oid_of("config.json", FILES["config.json"])


def test_the_log_says_which_commit_is_read(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        store_of(hub).list()
        store_of(hub, NAME).list()
    first, second = caplog.messages
    commit = hub.repositories[NAME].branches["main"]
    assert first == f"hf://{NAME} is read from {hub.hub_url} at commit {commit}."
    assert second.startswith(f"{NAME} is no folder here. hf://{NAME} is read from")


def test_where_the_answer_tells_no_sizes_the_tree_is_read_page_by_page(hub: Hub) -> None:
    hub.sizes_told, hub.page_size = False, 100
    hub.repository(NAME).commit({f"more/{number:04}.txt": b"x" for number in range(2_500)})
    store = store_of(hub)
    assert weights_of(store).version == oid_of("model.safetensors", WEIGHTS)
    assert len(list(list_below(store))) == len(FILES) + 2_500
    assert len(hub.asked) > 25


def test_a_folder_is_read_page_by_page_alone(hub: Hub) -> None:
    hub.sizes_told = False
    store = store_of(hub, f"hf://{NAME}/original")
    assert [item.name for item in store.list().objects] == ["a b#1.safetensors"]
    commit = hub.repositories[NAME].branches["main"]
    assert hub.targets("hub")[1] == f"/api/models/{NAME}/tree/{commit}/original"


def test_where_an_answer_may_not_name_all_files_the_tree_does(hub: Hub) -> None:
    hub.repository(NAME).commit({f"more/{number:05}": b"" for number in range(10_000)})
    hub.page_size = 5_000
    assert len(list(list_below(store_of(hub)))) == len(FILES) + 10_000
    assert [target.split("/")[5] for target in hub.targets("hub")] == ["revision", "tree", "tree", "tree"]


@pytest.mark.parametrize("link", ["http://localhost:9/elsewhere", "https://127.0.0.1:9/x", "ftp://h/"])
def test_a_next_page_of_another_host_is_not_asked_for(hub: Hub, link: str) -> None:
    hub.sizes_told, hub.page_size, hub.next_link = False, 2, link
    with pytest.raises((BadEndpoint, Unsupported), match=r"another host's|cannot be used"):
        store_of(hub, HF_TOKEN=TOKEN).list()


def test_2500_files_are_one_request(hub: Hub) -> None:
    hub.repository(NAME).commit({f"{number:04}.json": b"{}" for number in range(2_500)})
    assert len(store_of(hub).list().objects) == 2_503
    assert len(hub.asked) == 1


def test_a_repository_that_was_renamed_is_followed(hub: Hub) -> None:
    hub.moved["old/name"] = NAME
    store = store_of(hub, "hf://old/name")
    assert read_whole(store.open_reader(), weights_of(store)) == WEIGHTS


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"sha": "main"}', b'{"id": 1}'])
def test_what_is_no_hub_is_told(body: bytes, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setattr(json, "dumps", lambda value: body.decode())
    with pytest.raises(BadEndpoint, match="does not answer as the hub's API does") as caught:
        store_of(hub).list()
    assert "HF_ENDPOINT" in caught.value.remedy


def test_names_that_lead_out_of_the_folder_are_refused(hub: Hub) -> None:
    hub.repository(NAME).commit({"../../etc/passwd": b"x"})
    with pytest.raises(BadEndpoint, match="which no commit can hold"):
        store_of(hub).list()


def test_the_settings_are_told(hub: Hub) -> None:
    store = store_of(hub, HF_TOKEN=TOKEN)
    told = {setting.name: (setting.value, setting.origin) for setting in store.describe()}
    assert told == {
        "endpoint": (hub.hub_url, "HF_ENDPOINT"),
        "principal": ("a token", "HF_TOKEN"),
        "revision": ("main", "default"),
    }
    store.list()
    assert store.describe()[-1].value == hub.repositories[NAME].branches["main"]
    assert TOKEN not in str(store.describe())


# ---- reading


def test_a_large_file_is_read_by_ranges_from_the_other_host(hub: Hub) -> None:
    store = store_of(hub)
    item, reader = weights_of(store), store.open_reader()
    assert read_range(reader, item, 1_000, 5_000) == WEIGHTS[1_000:6_000]
    assert read_range(reader, item, 299_000, 1_000) == WEIGHTS[299_000:]
    ranges = [asked.headers["range"] for asked in hub.asked if asked.where == "cdn"]
    assert ranges == ["bytes=1000-5999", "bytes=299000-299999"]


def test_the_token_is_never_shown_to_the_other_host(hub: Hub) -> None:
    hub.repositories[NAME].readers = frozenset({TOKEN})
    store = store_of(hub, HF_TOKEN=TOKEN)
    assert read_whole(store.open_reader(), weights_of(store)) == WEIGHTS
    by_host = {
        where: [a.headers.get("authorization") for a in hub.asked if a.where == where]
        for where in ("hub", "cdn")
    }
    assert set(by_host["hub"]) == {f"Bearer {TOKEN}"}
    assert by_host["cdn"] == [None]


def test_a_signed_address_arrives_as_it_was_given(hub: Hub) -> None:
    store = store_of(hub)
    read_range(store.open_reader(), weights_of(store), 0, 1)
    (target,) = [asked.target for asked in hub.asked if asked.where == "cdn"]
    assert target.partition("?")[2] == f"{QUERY}&Signature=first"


def test_a_small_file_comes_from_the_hub_itself(hub: Hub) -> None:
    store = store_of(hub)
    item = store.list().find("config.json")
    assert item is not None
    assert read_whole(store.open_reader(), item) == FILES["config.json"]
    assert hub.targets("cdn") == []


def test_where_the_hub_leads_to_is_asked_for_once_by_all_readers(hub: Hub) -> None:
    store = store_of(hub)
    item = weights_of(store)
    for start in range(0, 300_000, 100_000):
        read_range(store.open_reader(), item, start, 100_000)
    assert len(hub.targets("hub")) == 2
    assert len(hub.targets("cdn")) == 3


def test_an_address_that_has_expired_is_asked_for_anew(hub: Hub) -> None:
    store = store_of(hub)
    item, one, other = weights_of(store), store.open_reader(), store.open_reader()
    read_range(one, item, 0, 10)
    read_range(other, item, 0, 10)
    hub.signature = "second"
    assert read_range(one, item, 10, 100) == WEIGHTS[10:110]
    assert read_range(other, item, 10, 100) == WEIGHTS[10:110]
    assert len(hub.targets("hub")) == 3


def test_a_load_survives_addresses_that_expire(hub: Hub) -> None:
    store = store_of(hub)
    item = weights_of(store)
    read_range(store.open_reader(), item, 0, 10)
    hub.signature = "second"
    memory = bytearray(len(WEIGHTS))
    plan = plan_reads([Placement(0, 0, len(WEIGHTS), 0, 0, "U8", "U8")], 20_000)
    Transfer(plan, [item], store, memoryview(memory)).wait()
    assert bytes(memory) == WEIGHTS
    assert 403 in [asked.status for asked in hub.asked]


def test_an_address_that_is_refused_at_once_is_final(hub: Hub) -> None:
    store = store_of(hub)
    item = weights_of(store)
    hub.cdn_refuses = True
    with pytest.raises(AccessDenied, match="the address that the hub has just given is refused") as caught:
        read_whole(store.open_reader(), item)
    assert "Signature" not in str(caught.value)


def test_a_load_keeps_to_its_commit(hub: Hub) -> None:
    store = store_of(hub)
    item = weights_of(store)
    hub.repository(NAME).commit({"model.safetensors": WEIGHTS[::-1]})
    assert read_whole(store.open_reader(), item) == WEIGHTS


def test_a_commit_that_is_gone_is_a_change(hub: Hub) -> None:
    store = store_of(hub)
    item = weights_of(store)
    hub.repositories[NAME].commits.clear()
    with pytest.raises(Changed, match="removed after it was listed"):
        read_whole(store.open_reader(), item)


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("model.safetensors", "X-Repo-Commit", "0" * 40),
        ("model.safetensors", "X-Linked-ETag", '"' + "0" * 64 + '"'),
        ("model.safetensors", "X-Linked-Size", "7"),
        ("config.json", "X-Linked-ETag", '"' + "0" * 40 + '"'),
    ],
)
def test_another_file_than_the_listed_one_is_never_taken(
    hub: Hub, name: str, header: str, value: str
) -> None:
    store = store_of(hub)
    item = store.list().find(name)
    assert item is not None
    hub.spoil = {header: value}
    with pytest.raises(Changed, match="another file than it listed"):
        read_whole(store.open_reader(), item)


@pytest.mark.parametrize("tag", ['"some-mirrors-own-tag"', 'W/"weak"'])
def test_a_mirrors_tags_of_another_kind_do_not_count(hub: Hub, tag: str) -> None:
    store = store_of(hub)
    item = store.list().find("config.json")
    assert item is not None
    hub.spoil = {"X-Linked-ETag": tag}
    assert read_whole(store.open_reader(), item) == FILES["config.json"]


def test_a_mirror_may_name_the_commit_instead_of_the_file(hub: Hub) -> None:
    store = store_of(hub)
    item = store.list().find("config.json")
    assert item is not None
    hub.spoil = {"X-Linked-ETag": f'"{hub.repositories[NAME].branches["main"]}"'}
    assert read_whole(store.open_reader(), item) == FILES["config.json"]


def test_of_a_mirror_that_tells_no_versions_the_commit_is_the_version(hub: Hub) -> None:
    hub.versions_told = False
    store = store_of(hub)
    item = store.list().find("config.json")
    assert item is not None
    assert item.version == hub.repositories[NAME].branches["main"]
    assert read_whole(store.open_reader(), item) == FILES["config.json"]
    assert weights_of(store).version == oid_of("model.safetensors", WEIGHTS)


def test_a_look_up_gives_first_bytes_of_the_listed_version(hub: Hub) -> None:
    store = store_of(hub)
    found = store.look_up("model.safetensors", 64)
    assert found.prefix == WEIGHTS[:64]
    assert found.item == weights_of(store)
    assert store.look_up("config.json", 10_000).prefix == FILES["config.json"]


@pytest.mark.parametrize("name", ["absent.json", "../x", "a//b"])
def test_a_look_up_of_what_is_not_there_says_so(hub: Hub, name: str) -> None:
    with pytest.raises(NotFound):
        store_of(hub).look_up(name, 1)


def test_an_empty_file_is_looked_up(hub: Hub) -> None:
    hub.repository(NAME).commit({"empty.txt": b""})
    assert store_of(hub).look_up("empty.txt", 5).prefix == b""


def test_the_listings_connection_is_kept_for_the_first_read(hub: Hub) -> None:
    store = store_of(hub)
    item = store.list().find("config.json")
    assert item is not None
    read_whole(store.open_reader(), item)
    assert (len(hub.targets("hub")), hub.connections) == (3, 1)


def test_a_read_is_ended_from_another_thread(hub: Hub) -> None:
    store = store_of(hub)
    item, reader = weights_of(store), store.open_reader()
    reader.abort()
    with pytest.raises(TransientError):
        read_whole(reader, item)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"Content-Range": "bytes 0-9/300001"}, Changed),
        ({"Content-Range": "bytes 1-10/300000"}, Unsupported),
        ({"Content-Range": "bytes */300000"}, Unsupported),
        ({"Content-Encoding": "gzip"}, Unsupported),
    ],
)
def test_what_the_other_host_sends_is_proved(
    hub: Hub, headers: dict[str, str], kind: type[Exception]
) -> None:
    store = store_of(hub)
    item = weights_of(store)
    hub.cdn_spoil = headers
    with pytest.raises(kind):
        read_range(store.open_reader(), item, 0, 10)


def test_the_library_reads_one_file_of_a_repository(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"x": np.arange(1000, dtype=np.float32)}, tmp_path / "x.safetensors")
    hub.put(tmp_path, "org/other", "sub")
    monkeypatch.setenv("HF_ENDPOINT", hub.hub_url)
    tensors = headrace.load_file("hf://org/other/sub/x.safetensors", framework="numpy")
    assert tensors["x"].tolist() == list(range(1000))


def test_redirects_without_end_are_refused(hub: Hub) -> None:
    hub.answers = [(302, {"Location": f"/again{number}"}) for number in range(10)]
    with pytest.raises(Unsupported, match="redirects more than"):
        store_of(hub).list()


def test_a_mirror_below_a_path_is_asked_there(hub: Hub) -> None:
    hub.answers = [(404, {})]
    with pytest.raises(BadEndpoint):
        store_of(hub, HF_ENDPOINT=f"{hub.hub_url}/artifactory/api/hf/").list()
    assert hub.asked[0].target.startswith(f"/artifactory/api/hf/api/models/{NAME}/revision/main")
