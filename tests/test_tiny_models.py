"""The checkpoints that other tests rely on are what transformers itself reads back."""

from pathlib import Path

import pytest
import torch
import transformers

from tests.tiny_models import VOCAB_SIZE, in_dtype, make_tiny, save_checkpoint


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_the_saved_weights_back(
    tmp_path: Path, family: str, shards: int, tied: bool
) -> None:
    model = in_dtype(make_tiny(family, tie_word_embeddings=tied), torch.bfloat16)
    save_checkpoint(model, tmp_path, shards=shards)
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    assert (tmp_path / "model.safetensors.index.json").exists() is (shards > 1)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype is torch.bfloat16
    held = loaded.state_dict()
    assert held.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(held[name], tensor), name


def test_the_saved_tokenizer_gives_every_text_back_and_renders_chats(tmp_path: Path) -> None:
    save_checkpoint(make_tiny("llama"), tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The héadrace carries water — 水 to\nthe turbine."
    ids = tokenizer.encode(text)
    assert max(ids) < VOCAB_SIZE
    assert len(ids) < len(text.encode())
    assert tokenizer.decode(ids) == text
    chat = [{"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(rendered)[0] == 1
