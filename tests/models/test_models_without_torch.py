"""The engine plans its reads while torch is still being imported, so layouts must not import it."""

import subprocess
import sys

import pytest

MODULES = [
    "headrace.models.registry",
    "headrace.models.layout",
    "headrace.models.errors",
    "headrace.models.llama.layout",
    "headrace.models.mistral.layout",
    "headrace.models.qwen2.layout",
    "headrace.models.qwen3.layout",
]


@pytest.mark.parametrize("module", MODULES)
def test_importing_it_leaves_torch_and_numpy_out(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'torch', 'numpy', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_making_a_layout_leaves_torch_out() -> None:
    code = """
import sys
from headrace.models.registry import layout_of, read_config
config = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 320,
}
read_config(config)
print(len(layout_of(config).parameters), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["17", "False"]
