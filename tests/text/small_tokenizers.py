"""Real tokenizers of every kind that the text package reads, small enough to train in a test."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The capital of France is Paris, and the river in Paris is the Seine.",
    "def main() -> None:\n    print('hello, world')\n",
    "Größe, naïve café, Ελληνικά, русский язык, 日本語のテキスト, 한국어, 😀👍🏽",
    "[INST] What is the capital of France? [/INST] It is Paris.",
    "  two  spaces   three, tabs\tand\n\nnew lines 1234567890",
] * 4

# Not special; all characters of the first are in the byte alphabet and not all of the second are, which makes a
# difference to a byte-level decoder.
ADDED = ["<tool>", "｜é▁｜"]

CHAT_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """GPT-2's kind, as in Llama 3 and Qwen: every byte is a token, special tokens are added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=CHAT_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in ADDED])
    return tokenizer


def byte_level_with_bos() -> Tokenizer:
    """As in Llama 3: the post-processor of tokenizer.json writes the BOS."""
    tokenizer = byte_level()
    bos = "<|endoftext|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=None, special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def _sentencepiece_model() -> models.BPE:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    # A small alphabet leaves most of the other scripts to the byte tokens.
    trainer = trainers.BpeTrainer(vocab_size=180, limit_alphabet=60, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    state = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: index for index, token in enumerate([*first, *state["vocab"]])}
    merges = [tuple(merge) for merge in state["merges"]]
    return models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def byte_fallback() -> Tokenizer:
    """SentencePiece's kind with byte fallback, as tokenizer.json of Llama 2 writes it."""
    tokenizer = Tokenizer(_sentencepiece_model())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], pair=None, special_tokens=[("<s>", 1)]
    )
    return tokenizer


def byte_fallback_with_gaps() -> Tokenizer:
    """A file that says nothing of byte fallback, and whose vocabulary lacks some of the byte tokens."""
    content = json.loads(byte_fallback().to_str())
    content["model"]["byte_fallback"] = False
    for byte in "日".encode():
        del content["model"]["vocab"][f"<0x{byte:02X}>"]
    return Tokenizer.from_str(json.dumps(content))


def byte_fallback_without_prefix() -> Tokenizer:
    """The same without a space at the start of a text, as in Gemma."""
    tokenizer = byte_fallback()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram with the Metaspace decoder, which drops the first token's space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=140, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def words() -> Tokenizer:
    """Whole words and no decoder at all: tokens are joined by spaces."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>"], show_progress=False)
    )
    return tokenizer


KINDS = {
    make.__name__: make
    for make in (byte_level, byte_fallback, byte_fallback_without_prefix, metaspace, words)
}


def files_of(tokenizer: Tokenizer, settings: dict[str, Any] | None = None, **others: Any) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json with `settings`, and others (special_tokens_map=... → special_tokens_map.json)."""
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    files["tokenizer_config.json"] = json.dumps(settings or {}).encode()
    files |= {f"{name}.json": json.dumps(content).encode() for name, content in others.items()}
    return files


def write_files(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
