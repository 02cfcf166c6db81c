"""A model that a front can speak for: a real byte-level tokenizer, one token per byte, and a chat template."""

import json

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.ipc.messages import ModelInfo

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = "<|im_end|>"
EOS_ID = len(ALPHABET)
CONTEXT_LENGTH = 2048
VOCAB_SIZE = len(ALPHABET) + 2

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('Unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if mood is defined %}({{ mood }}){% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Its ids below 256 stand for bytes."""
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True), AddedToken("<|im_start|>", special=True)])
    return tokenizer


TOKENIZER = make_tokenizer()


def ids_of(text: str) -> list[int]:
    """One id per UTF-8 byte, specials recognised."""
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def text_of(ids: list[int]) -> str:
    """With special tokens."""
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def model_info(
    *, template: str | None = TEMPLATE, generation_config: dict[str, object] | None = None
) -> ModelInfo:
    """What an engine tells of it."""
    config: dict[str, object] = {"eos_token": EOS, "model_max_length": CONTEXT_LENGTH}
    if template is not None:
        config["chat_template"] = template
    return ModelInfo(
        config=json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}),
        generation_config="" if generation_config is None else json.dumps(generation_config),
        tokenizer_files={
            "tokenizer.json": TOKENIZER.to_str().encode(),
            "tokenizer_config.json": msgspec.json.encode(config),
        },
        context_length=CONTEXT_LENGTH,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(EOS_ID,),
    )
