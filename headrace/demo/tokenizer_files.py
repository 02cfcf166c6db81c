"""tokenizer.json and tokenizer_config.json from the vocabulary that a SmolLM2 GGUF file carries."""

from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.demo.gguf_checkpoint import field

_CONTROL = 3  # GGUF's token type of special tokens


def tokenizer_json(reader: GGUFReader) -> str:
    """The tokenizer: byte-level BPE in which every digit is a token of its own (SmolLM2's pre-tokenizer)."""
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = field(reader, "tokenizer.ggml.token_type")
    merges = [_pair(line) for line in field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    return str(tokenizer.to_str())


def tokenizer_config(reader: GGUFReader) -> dict[str, Any]:
    """tokenizer_config.json with the special tokens' roles and the model's chat template."""
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")

    def role(name: str) -> str:
        index: int = field(reader, f"tokenizer.ggml.{name}_token_id")
        return tokens[index]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": field(reader, "tokenizer.ggml.add_bos_token"),
        "add_prefix_space": field(reader, "tokenizer.ggml.add_space_prefix"),
        "bos_token": role("bos"),
        "eos_token": role("eos"),
        "unk_token": role("unknown"),
        "pad_token": role("padding"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": field(reader, "llama.context_length"),
        "chat_template": field(reader, "tokenizer.chat_template"),
    }


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
