"""What the files hold beside config.json's word: end-of-sequence ids, heads of their own, scaled contexts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from headrace.engine.loading.checkpoint import eos_token_ids, open_checkpoint
from headrace.engine.loading.weights import WrongTensors
from headrace.errors import HeadraceError
from headrace.ipc.messages import ModelInfo
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.errors import InvalidConfig
from tests.engine.harness import ask, start_engine
from tests.models.harness import theirs_greedy
from tests.models.options import ROPES
from tests.tiny_models import make_tiny, random_ids, save_checkpoint

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama with a tied head."""
    save_checkpoint(make_tiny("llama", tie_word_embeddings=True), tmp_path)
    return tmp_path


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Tensors added to the checkpoint, or taken out of it where None."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **change}
    save_file(
        {name: tensor for name, tensor in tensors.items() if tensor is not None}, path, {"format": "pt"}
    )


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (5, 7, (5, 7)),
        ([9, 5], [7, 5], (5, 7, 9)),
        (None, [[7], [3]], (3, 7)),
        (2, None, (2,)),
        (None, None, ()),
        (0, [], (0,)),
    ],
)
def test_end_ids_of_all_files_count(
    folder: Path, own: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    edit(folder / "config.json", eos_token_id=own)
    edit(folder / "generation_config.json", eos_token_id=generation)
    checkpoint = open_checkpoint(EngineOptions(model=str(folder)), Timeline(0.0))
    assert eos_token_ids(checkpoint) == expected


@pytest.mark.parametrize("value", [True, [1, False], "</s>", 2.0, -1, {"id": 2}])
def test_what_is_no_token_id_is_named_with_its_file(folder: Path, value: Any) -> None:
    edit(folder / "generation_config.json", eos_token_id=value)
    checkpoint = open_checkpoint(EngineOptions(model=str(folder)), Timeline(0.0))
    with pytest.raises(InvalidConfig, match=r"generation_config\.json gives 'eos_token_id'"):
        eos_token_ids(checkpoint)


@pytest.mark.parametrize("case", ["equal", "unequal", "head-only"])
def test_a_tied_head_is_what_transformers_makes_of_the_file(folder: Path, case: str) -> None:
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    changes: dict[str, dict[str, torch.Tensor | None]] = {
        "equal": {HEAD: embedding.clone()},
        "unequal": {HEAD: embedding.flip(0).contiguous()},
        "head-only": {HEAD: embedding.clone(), EMBEDDING: None},
    }
    rewrite(folder, changes[case])
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight) is (case != "unequal")
    prompt = random_ids(theirs, 20, seed=3)
    engine, _ = start_engine(str(folder))
    assert ask(engine, prompt, 12) == theirs_greedy(theirs, prompt, 12)


@pytest.mark.parametrize(("missing", "present"), [(HEAD, EMBEDDING), (EMBEDDING, HEAD)])
def test_an_untied_model_needs_both_and_the_error_names_the_missing_one(
    tmp_path: Path, missing: str, present: str
) -> None:
    save_checkpoint(make_tiny("llama"), tmp_path)
    rewrite(tmp_path, {missing: None})
    with pytest.raises(WrongTensors, match=f"Missing: {missing}") as refusal:
        start_engine(str(tmp_path))
    assert present not in str(refusal.value)


def test_the_context_reaches_as_far_as_the_scaling_carries(tmp_path: Path) -> None:
    save_checkpoint(make_tiny("qwen2", max_position_embeddings=64, **ROPES["linear"]), tmp_path)
    _, sent = start_engine(str(tmp_path), skip_server_warmup=True)
    assert [message.context_length for message in sent if isinstance(message, ModelInfo)] == [192]
    with pytest.raises(HeadraceError, match="--context-length 193 is more than the model's own 192"):
        start_engine(str(tmp_path), context_length=193)


@pytest.mark.parametrize(
    ("name", "length", "answer"),
    # 2 * 32 tokens are the longest context of the first.
    [("dynamic", 50, 13), ("dynamic-from-the-80th-token-on", 70, 24), ("longrope", 70, 24)],
)
def test_how_a_long_prompt_is_cut_does_not_change_its_angles(
    tmp_path: Path, name: str, length: int, answer: int
) -> None:
    model = make_tiny("llama", **ROPES[name])
    save_checkpoint(model, tmp_path)
    prompt = random_ids(model, length, seed=3)
    engine, _ = start_engine(str(tmp_path), chunked_prefill_size=16)
    assert ask(engine, prompt, answer) == theirs_greedy(model, prompt, answer)
