"""Which files are the weights, and which are fetched whole."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.files import INDEX_NAME, MAX_METADATA_BYTES, BadModelFiles, choose_metadata
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.weight_files import choose_weights, describe, read_index
from tests.profiles import examples

WHERE = "s3://bucket/model"
SEEDED = settings(max_examples=examples(200))


def listing(*names: str, folders: tuple[str, ...] = (), size_bytes: int = 100) -> Listing:
    items = tuple(ObjectInfo(f"model/{name}", name, size_bytes, "v") for name in sorted(set(names)))
    return Listing(items, folders)


def chosen(*names: str, index: dict[str, str] | None = None) -> list[str]:
    data = None if index is None else json.dumps({"weight_map": index}).encode()
    return [item.name for item in choose_weights(listing(*names), WHERE, data)]


def shards(total: int, name: str = "model") -> list[str]:
    return [f"{name}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)]


def refused(*names: str, folders: tuple[str, ...] = (), index: bytes | None = None) -> BadModelFiles:
    with pytest.raises(BadModelFiles) as caught:
        choose_weights(listing(*names, folders=folders), WHERE, index)
    assert WHERE in str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_model_safetensors_is_the_weights_whatever_lies_beside_it() -> None:
    assert chosen("model.safetensors", "adapter.safetensors", *shards(2)) == ["model.safetensors"]


@pytest.mark.parametrize(
    ("names", "broken"),
    [((), "model.safetensors"), (("other.safetensors",), "model.safetensors"), (shards(3)[:2], shards(3)[2])],
)
def test_a_weight_that_is_a_link_to_nowhere_is_named(names: tuple[str, ...], broken: str) -> None:
    linked = replace(listing("config.json", *names), broken_links=(broken,))
    with pytest.raises(BadModelFiles, match=f"{WHERE}/{broken} is a link that leads nowhere"):
        choose_weights(linked, WHERE, None)


def test_a_shard_of_the_index_that_is_a_link_to_nowhere_is_named() -> None:
    linked = replace(listing("a.safetensors"), broken_links=("b.safetensors", "unused.safetensors"))
    index = json.dumps({"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}).encode()
    with pytest.raises(BadModelFiles, match=r"/b\.safetensors is a link that leads nowhere\."):
        choose_weights(linked, WHERE, index)


def test_a_link_to_nowhere_that_is_not_needed_does_no_harm() -> None:
    linked = replace(listing("model.safetensors"), broken_links=("adapter.safetensors", "README.md"))
    assert [item.name for item in choose_weights(linked, WHERE, None)] == ["model.safetensors"]
    assert choose_metadata(linked, WHERE).metadata == ()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_metadata_that_is_a_link_to_nowhere_is_named(name: str) -> None:
    with pytest.raises(BadModelFiles, match=f"{WHERE}/{name} is a link that leads nowhere"):
        choose_metadata(replace(listing(), broken_links=(name,)), WHERE)


def test_the_only_safetensors_file_is_the_weights() -> None:
    assert chosen("config.json", "weights.safetensors") == ["weights.safetensors"]


@pytest.mark.parametrize("total", [1, 2, 17])
def test_a_complete_numbered_set_is_the_weights(total: int) -> None:
    assert chosen("config.json", *shards(total)) == shards(total)


def test_a_numbered_set_beside_another_file_is_the_weights() -> None:
    assert chosen("consolidated.safetensors", *shards(3)) == shards(3)


@pytest.mark.parametrize(
    "beside",
    [
        ["model.fp16.safetensors"],
        shards(2, "model.fp16"),
        shards(3, "model.bf16"),
        ["consolidated.safetensors"],
        shards(2, "consolidated"),
        ["adapter_model.safetensors"],
        ["optimizer.safetensors", "scheduler.safetensors", "training_state.safetensors"],
        ["original/model.safetensors", "checkpoint-500/model-00001-of-00002.safetensors"],
        [".cache.safetensors", "._model-00001-of-00002.safetensors"],
    ],
    ids=" ".join,
)
def test_what_else_lies_beside_the_weights_is_not_loaded(beside: list[str]) -> None:
    assert chosen("model.safetensors", *beside) == ["model.safetensors"]
    assert chosen(*shards(2), *beside) == shards(2)
    index = {"a": shards(2)[0], "b": shards(2)[1]}
    assert chosen(*shards(2), *shards(3), *beside, index=index) == shards(2)


@pytest.mark.parametrize(
    ("name", "role", "remedy"),
    [
        ("adapter_model.safetensors", "an adapter's", "Merge it"),
        ("consolidated.safetensors", "the original layout", "transformers' layout"),
        ("consolidated-00001-of-00002.safetensors", "the original layout", "transformers' layout"),
        ("optimizer.safetensors", "a trainer's state", "complete numbered set"),
        (".model.safetensors", "hidden", "complete numbered set"),
    ],
)
def test_safetensors_that_are_no_weights_are_refused_with_the_reason(
    name: str, role: str, remedy: str
) -> None:
    error = refused("config.json", name)
    assert f"{name} is " in str(error)
    assert role in str(error)
    assert remedy in error.remedy


def test_a_second_precision_is_loaded_where_it_is_the_only_one() -> None:
    assert chosen("model.fp16.safetensors") == ["model.fp16.safetensors"]
    assert chosen(*shards(2, "model.fp16")) == shards(2, "model.fp16")


def test_of_two_sets_the_incomplete_one_that_is_the_models_is_told() -> None:
    error = refused(*shards(3)[:2], *shards(2, "model.fp16"))
    assert "holds 2 of 3 shards; missing: 00003." in str(error)


def test_weights_in_folders_below_are_never_loaded() -> None:
    error = refused("config.json", "original/model.safetensors", folders=("original",))
    assert "holds no .safetensors file" in str(error)


def test_with_an_index_its_shards_are_the_weights_and_nothing_else() -> None:
    index = {"a": "part-b.safetensors", "b": "part-a.safetensors", "c": "part-b.safetensors"}
    names = ["model.safetensors", "part-a.safetensors", "part-b.safetensors"]
    assert chosen(*names, index=index) == ["part-a.safetensors", "part-b.safetensors"]


def test_a_shard_of_the_index_that_is_missing_is_named() -> None:
    index = json.dumps({"weight_map": {"a": "here.safetensors", "b": "lost.safetensors"}}).encode()
    error = refused("here.safetensors", index=index)
    assert "names 1 of 2 shards that are not there: lost.safetensors." in str(error)


@pytest.mark.parametrize(
    ("shard", "remedy"),
    [
        ("pytorch_model.bin", "Pickled weights"),
        ("config.json", "Upload the index that belongs to the shards"),
    ],
)
def test_an_index_that_names_no_safetensors_is_told(shard: str, remedy: str) -> None:
    error = refused("config.json", shard, index=json.dumps({"weight_map": {"a": shard}}).encode())
    assert f"names files that are no safetensors: {shard}." in str(error)
    assert remedy in error.remedy


def test_an_index_that_names_shards_in_folders_below_is_told() -> None:
    index = json.dumps({"weight_map": {"a": "sub/x.safetensors"}}).encode()
    assert "names files outside of its own folder" in str(refused("x.safetensors", index=index))


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_cannot_lead_out_of_the_folder(shard: str) -> None:
    refused("model.safetensors", index=json.dumps({"weight_map": {"a": shard}}).encode())


@SEEDED
@given(st.integers(2, 30), st.data())
def test_the_missing_shards_of_a_set_are_counted_and_named(total: int, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, total - 1), min_size=1, max_size=total - 1))
    names = [name for number, name in enumerate(shards(total)) if number not in lost]
    message = str(refused(*names))
    assert f"holds {total - len(lost)} of {total} shards" in message
    first_lost = [f"{number + 1:05d}" for number in sorted(lost)][:8]
    assert f"missing: {', '.join(first_lost)}{' …' if len(lost) > 8 else ''}." in message


def test_a_set_that_claims_to_be_endless_is_refused_without_counting_it_up() -> None:
    assert "of 99999999999999999 shards" in str(refused("m-00001-of-99999999999999999.safetensors"))


@pytest.mark.parametrize(
    "names",
    [
        ["m-00003-of-00002.safetensors", *shards(2, "m")],
        ["m-00000-of-00000.safetensors"],
        ["m-000001-of-00001.safetensors", "m-00001-of-00001.safetensors"],
    ],
)
def test_numbers_that_make_no_set_are_refused(names: list[str]) -> None:
    assert "do not make a set" in str(refused(*names))


@pytest.mark.parametrize(
    "names",
    [["a.safetensors", "b.safetensors"], [*shards(2, "a"), *shards(2, "b")], [*shards(2), *shards(3)]],
)
def test_several_candidates_without_an_index_are_not_guessed_among(names: list[str]) -> None:
    error = refused(*names)
    assert f"no {INDEX_NAME}, so it is not clear which" in str(error)
    assert names[0] in str(error)


def test_pickled_weights_are_never_loaded_and_the_remedy_says_what_to_do() -> None:
    error = refused("config.json", "pytorch_model.bin")
    assert "There is: config.json, pytorch_model.bin." in str(error)
    assert "Pickled weights" in error.remedy
    assert "save_pretrained" in error.remedy


def test_gguf_alone_is_refused_with_the_way_out() -> None:
    assert "GGUF files are not read" in refused("config.json", "model.Q4_K_M.gguf").remedy


def test_a_folder_of_models_is_told_to_name_one() -> None:
    error = refused("README.md", folders=("qwen", "llama"))
    assert "qwen/" in str(error)
    assert error.remedy == "Name the folder that holds the model."


def test_an_empty_place_says_that_nothing_is_there() -> None:
    assert describe(Listing(())) == "Nothing is there."
    assert "Nothing is there." in str(refused())


def test_what_is_there_is_named_up_to_ten() -> None:
    assert describe(listing(*(f"{n:02d}" for n in range(13)))).endswith("09 and 3 more.")


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff",
     b"nul", b"[" * 100_000, b'{"weight_map": {"a": ["x"]}}'],
    ids=["empty", "list", "no map", "a list", "empty map", "a number", "no utf-8", "cut", "deep", "nested"],
)  # fmt: skip
def test_what_is_no_index_is_refused(index: bytes) -> None:
    with pytest.raises(BadModelFiles, match="is not a safetensors index"):
        read_index(index, WHERE)


@SEEDED
@given(st.binary(max_size=100))
def test_any_bytes_are_an_index_or_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(BadModelFiles):
        read_index(data, WHERE)


def test_metadata_is_picked_by_name_only() -> None:
    names = [
        "config.json",
        "tokenizer.json",
        INDEX_NAME,
        "model.safetensors",
        "README.md",
        "training_args.bin",
    ]
    files = choose_metadata(listing(*names), WHERE)
    assert [item.name for item in files.metadata] == ["config.json", INDEX_NAME, "tokenizer.json"]
    assert files.index is not None and files.index.name == INDEX_NAME


def test_without_an_index_there_is_none() -> None:
    assert choose_metadata(listing("config.json"), WHERE).index is None


def test_a_metadata_file_that_is_far_too_large_is_refused_before_it_is_fetched() -> None:
    huge = listing("tokenizer.json", size_bytes=MAX_METADATA_BYTES + 1)
    with pytest.raises(BadModelFiles, match=r"s3://bucket/model/tokenizer\.json has 67,108,865 bytes"):
        choose_metadata(huge, WHERE)


def test_chat_templates_in_their_folders_are_metadata_and_nothing_else_below_is() -> None:
    names = [
        "additional_chat_templates/rag.jinja",
        "templates/tool_use.jinja",
        "templates/notes.txt",
        "templates/deep/x.jinja",
        "other/x.jinja",
        "x.jinja",
        "original/tokenizer.model",
        "original/params.tiktoken",
    ]
    files = choose_metadata(listing(*names), WHERE, tokenizer_only=True)
    assert [item.name for item in files.metadata] == names[:2]


def test_a_processors_settings_are_metadata_of_the_model_but_not_of_its_tokenizer() -> None:
    names = ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"]
    assert [item.name for item in choose_metadata(listing(*names), WHERE).metadata] == names
    assert choose_metadata(listing(*names), WHERE, tokenizer_only=True).metadata == ()


def test_code_that_comes_with_a_model_is_never_fetched() -> None:
    names = ["modeling_custom.py", "configuration_custom.py", "tokenization_custom.py"]
    assert choose_metadata(listing(*names), WHERE).metadata == ()


def test_a_line_break_in_a_key_does_not_end_the_sentence() -> None:
    assert r"There is: new\nline.txt." in refused("new\nline.txt").message
