"""Flags of SGLang's server that ask for what Headrace does not have yet: data only.

They would change answers, routes or who may ask, so they are errors, not notes. Names, arities and defaults
follow SGLang's public "Server Arguments" reference (2026).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Flags that ask for one missing thing.

    Attributes:
        what: the beginning of the sentence "... not supported yet".
        switches: flags without a value.
        values: flags with one value → the value that asks for nothing and is accepted in silence, or None.
        lists: flags with one value or more.
        optional: flags with one value or none.
    """

    what: str
    switches: tuple[str, ...] = ()
    values: Mapping[str, str | None] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "More than one rank is",
        values={
            "--tp-size": "1",
            "--tensor-parallel-size": "1",
            "--tp": "1",
            "--pp-size": "1",
            "--pipeline-parallel-size": "1",
            "--pp": "1",
            "--dp-size": "1",
            "--data-parallel-size": "1",
            "--dp": "1",
            "--ep-size": "1",
            "--expert-parallel-size": "1",
            "--ep": "1",
            "--attn-cp-size": "1",
            "--attention-context-parallel-size": "1",
            "--moe-dp-size": "1",
            "--moe-data-parallel-size": "1",
            "--nnodes": "1",
            "--node-rank": "0",
        },
    ),
    Unsupported(
        "Choosing a GPU by number is (CUDA_VISIBLE_DEVICES does it)",
        values={"--base-gpu-id": "0"},
    ),
    Unsupported(
        "Quantization is",
        switches=("--quantize-and-serve",),
        values={
            "--quantization": None,
            "--quantization-param-path": None,
            "--kv-cache-dtype": "auto",
            "--torchao-config": "",
            "--modelopt-quant": None,
            "--modelopt-checkpoint-restore-path": None,
            "--modelopt-checkpoint-save-path": None,
            "--modelopt-export-path": None,
            "--rl-quant-profile": None,
        },
    ),
    Unsupported(
        "A head in another number format than the model's is",
        switches=("--enable-fp32-lm-head",),
    ),
    Unsupported(
        "Adapters (LoRA) are",
        switches=("--enable-lora",),
        lists=("--lora-paths",),
    ),
    Unsupported(
        "Speculative decoding is",
        values={
            "--speculative-algorithm": None,
            "--speculative-draft-model-path": None,
            "--speculative-draft-model": None,
        },
    ),
    Unsupported(
        "Matching a trainer's numbers is",
        values={"--rl-on-policy-target": None},
    ),
    Unsupported(
        "Parsing tool calls and reasoning is",
        values={"--tool-call-parser": None, "--reasoning-parser": None, "--tool-server": None},
    ),
    Unsupported(
        "Embedding is",
        switches=("--is-embedding",),
    ),
    Unsupported(
        "Input other than text is",
        switches=("--enable-multimodal", "--encoder-only", "--language-only"),
    ),
    Unsupported(
        "Another implementation or another reading of the model is",
        values={
            "--model-impl": "auto",
            "--json-model-override-args": "{}",
            "--tokenizer-mode": "auto",
            "--decrypted-config-file": None,
            "--decrypted-draft-config-file": None,
            "--kt-weight-path": None,
            "--dllm-algorithm": None,
            "--dllm-algorithm-config": None,
        },
        lists=("--custom-weight-loader",),
    ),
    Unsupported(
        "Serving without a tokenizer is",
        switches=("--skip-tokenizer-init",),
    ),
    Unsupported(
        "Checking a model against published checksums is",
        optional=("--model-checksum",),
    ),
    Unsupported(
        "Deleting a checkpoint after loading is",
        switches=("--delete-ckpt-after-loading",),
    ),
    Unsupported(
        "Offloading weights is",
        values={"--cpu-offload-gb": "0"},
    ),
    Unsupported(
        "Waiting for weights that others send is",
        switches=("--checkpoint-engine-wait-weights-before-ready",),
    ),
    Unsupported(
        "Splitting prefill and decode between servers is",
        switches=("--enable-pdmux",),
        values={"--disaggregation-mode": "null", "--kv-events-config": None},
    ),
    Unsupported(
        "Another scheduling policy is",
        values={"--schedule-policy": "fcfs"},
    ),
    Unsupported(
        "Serving low priorities before high ones is",
        switches=("--schedule-low-priority-values-first",),
    ),
    Unsupported(
        "Cutting prompts that are too long is",
        switches=("--allow-auto-truncate",),
    ),
    Unsupported(
        "Scoring several items in one prompt is",
        values={"--multi-item-scoring-delimiter": None},
    ),
    Unsupported(
        "Choosing a template other than by --chat-template is",
        values={
            "--hf-chat-template-name": None,
            "--completion-template": None,
            "--default-chat-template-kwargs": None,
        },
    ),
    Unsupported(
        "Other defaults for requests are",
        switches=("--stream-response-default-include-usage",),
        values={"--preferred-sampling-params": None},
    ),
    Unsupported(
        "Code or internals of the model in requests are",
        switches=(
            "--enable-custom-logit-processor",
            "--enable-return-hidden-states",
            "--enable-return-routed-experts",
        ),
        values={"--forward-hooks": None},
    ),
    Unsupported(
        "TLS at the server's own port is (put a reverse proxy in front)",
        values={
            "--ssl-keyfile": None,
            "--ssl-certfile": None,
            "--ssl-ca-certs": None,
            "--ssl-keyfile-password": None,
        },
        switches=("--enable-ssl-refresh",),
    ),
    Unsupported(
        "A protocol other than HTTP/1.1 is",
        switches=("--grpc-mode", "--enable-http2"),
    ),
    Unsupported(
        "A path prefix for the routes is",
        values={"--fastapi-root-path": ""},
    ),
    Unsupported(
        "An administrator's key of its own is",
        values={"--admin-api-key": None},
    ),
    Unsupported(
        "Storing responses is",
        switches=("--enable-response-store",),
    ),
    Unsupported(
        "Exporting requests or files of metrics is",
        switches=("--export-metrics-to-file", "--log-requests"),
        values={"--crash-dump-folder": None, "--msprobe-dump-config": None},
    ),
    Unsupported(
        "Dumping or injecting tensors is",
        values={
            "--debug-tensor-dump-output-folder": None,
            "--debug-tensor-dump-input-file": None,
            "--debug-tensor-dump-inject": None,
        },
        lists=("--debug-tensor-dump-layers",),
    ),
    Unsupported(
        "Reading flags from a file is",
        values={"--config": None},
    ),
)
