"""Flags of SGLang's server that are accepted and have no effect here: data only.

Names and arities follow SGLang's public "Server Arguments" reference (2026).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Flags for one and the same reason: what they tune is not there, or is always so.

    Attributes:
        reason: the end of the sentence "--flag has no effect here: ...".
        switches: flags without a value.
        values: flags with one value.
        lists: flags with one value or more.
    """

    reason: str
    switches: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        "the step loop does not overlap batches",
        switches=(
            "--disable-overlap-schedule",
            "--enable-two-batch-overlap",
            "--enable-single-batch-overlap",
        ),
        values=("--tbo-token-distribution-threshold",),
    ),
    NoEffect(
        "no model family here needs code from the model's folder",
        switches=("--trust-remote-code",),
    ),
    NoEffect(
        "a step computes prompt chunks and decodes together, first come, first served",
        switches=(
            "--enable-mixed-chunk",
            "--enable-dynamic-chunking",
            "--enable-prefill-delayer",
        ),
        values=(
            "--prefill-max-requests",
            "--schedule-conservativeness",
            "--priority-scheduling-preemption-threshold",
            "--retraction-policy",
            "--num-continuous-decode-steps",
            "--num-reserved-decode-tokens",
            "--scheduler-recv-interval",
            "--prefill-delayer-max-delay-passes",
            "--prefill-delayer-token-usage-low-watermark",
            "--prefill-delayer-queue-min-ratio",
            "--prefill-delayer-max-delay-ms",
        ),
        lists=("--prefill-delayer-forward-passes-buckets", "--prefill-delayer-wait-seconds-buckets"),
    ),
    NoEffect(
        "a request with a priority is always refused without --enable-priority-scheduling",
        switches=("--abort-on-priority-when-disabled",),
    ),
    NoEffect(
        "the prefix cache is one tree in the device's memory, and the least recently used goes first",
        switches=(
            "--disable-chunked-prefix-cache",
            "--enable-hierarchical-cache",
            "--enable-lmcache",
        ),
        values=(
            "--radix-eviction-policy",
            "--hicache-ratio",
            "--hicache-size",
            "--hicache-write-policy",
            "--hicache-io-backend",
            "--hicache-mem-layout",
            "--hicache-storage-backend",
            "--hicache-storage-prefetch-policy",
            "--hicache-storage-backend-extra-config",
        ),
    ),
    NoEffect(
        "kernels are chosen by device and CPU features",
        switches=(
            "--disable-flashinfer-autotune",
            "--triton-attention-reduce-in-fp32",
            "--flashinfer-mla-disable-ragged",
            "--enable-fused-qk-norm-rope",
        ),
        values=(
            "--attention-backend",
            "--prefill-attention-backend",
            "--decode-attention-backend",
            "--sampling-backend",
            "--dsa-prefill-backend",
            "--dsa-decode-backend",
            "--nsa-prefill-backend",
            "--nsa-decode-backend",
            "--fp8-gemm-backend",
            "--fp4-gemm-backend",
            "--bf16-gemm-backend",
            "--triton-attention-num-kv-splits",
            "--triton-attention-split-tile-size",
        ),
    ),
    NoEffect(
        "nothing is compiled or captured into graphs",
        switches=(
            "--disable-cuda-graph",
            "--disable-cuda-graph-padding",
            "--enable-profile-cuda-graph",
            "--enable-cudagraph-gc",
            "--disable-piecewise-cuda-graph",
            "--enforce-piecewise-cuda-graph",
            "--enable-torch-compile",
            "--enable-torch-compile-debug-mode",
            "--enable-layerwise-nvtx-marker",
        ),
        values=(
            "--cuda-graph-max-bs",
            "--torch-compile-max-bs",
            "--piecewise-cuda-graph-compiler",
            "--piecewise-cuda-graph-max-tokens",
        ),
        lists=("--cuda-graph-bs", "--piecewise-cuda-graph-tokens"),
    ),
    NoEffect(
        "there is one rank",
        switches=(
            "--enable-dp-attention",
            "--enable-dp-lm-head",
            "--enable-attn-tp-input-scattered",
            "--enable-dsa-prefill-context-parallel",
            "--enable-nsa-prefill-context-parallel",
            "--enable-p2p-check",
            "--enable-nccl-nvls",
            "--enable-symm-mem",
            "--enable-torch-symm-mem",
            "--enable-mscclpp",
            "--disable-custom-all-reduce",
            "--enable-flashinfer-allreduce-fusion",
            "--enable-aiter-allreduce-fusion",
            "--enable-quant-communications",
        ),
        values=(
            "--dist-init-addr",
            "--nccl-init-addr",
            "--nccl-port",
            "--dist-timeout",
            "--load-balance-method",
            "--load-watch-interval",
            "--gpu-id-step",
            "--pp-max-micro-batch-size",
            "--pp-async-batch-depth",
            "--dsa-prefill-cp-mode",
            "--nsa-prefill-cp-mode",
        ),
        lists=("--numa-node",),
    ),
    NoEffect(
        "no model family here has experts",
        switches=(
            "--enable-ep-moe",
            "--enable-deepep-moe",
            "--enable-flashinfer-cutlass-moe",
            "--enable-flashinfer-cutedsl-moe",
            "--enable-flashinfer-trtllm-moe",
            "--enable-flashinfer-mxfp4-moe",
            "--enable-triton-kernel-moe",
            "--enable-fused-grouped-gemm-combine",
            "--enable-deepep-waterfill",
            "--enable-eplb",
            "--enable-expert-distribution-metrics",
            "--enable-elastic-expert-backup",
            "--elastic-ep-rejoin",
            "--disable-shared-experts-fusion",
            "--disable-flashinfer-cutlass-moe-fp4-allgather",
        ),
        values=(
            "--moe-a2a-backend",
            "--moe-runner-backend",
            "--flashinfer-mxfp4-moe-precision",
            "--moe-dense-tp-size",
            "--deepep-mode",
            "--deepep-config",
            "--deepep-dispatcher-output-dtype",
            "--ep-num-redundant-experts",
            "--ep-dispatch-algorithm",
            "--init-expert-location",
            "--eplb-algorithm",
            "--eplb-rebalance-num-iterations",
            "--eplb-rebalance-layers-per-chunk",
            "--eplb-min-rebalancing-utilization-threshold",
            "--expert-distribution-recorder-mode",
            "--expert-distribution-recorder-buffer-size",
            "--elastic-ep-backend",
            "--mooncake-ib-device",
            "--kt-method",
            "--kt-cpuinfer",
            "--kt-threadpool-count",
            "--kt-num-gpu-experts",
            "--kt-max-deferred-experts-per-token",
        ),
    ),
    NoEffect(
        "no model family here has recurrent layers or a sliding-window pool of its own",
        switches=("--disable-hybrid-swa-memory",),
        values=(
            "--swa-full-tokens-ratio",
            "--hybrid-kvcache-ratio",
            "--max-mamba-cache-size",
            "--mamba-ssm-dtype",
            "--mamba-full-memory-ratio",
            "--mamba-scheduler-strategy",
            "--mamba-radix-cache-strategy",
            "--mamba-track-interval",
            "--mamba-backend",
            "--linear-attn-backend",
        ),
    ),
    NoEffect(
        "no model family here takes images, audio or video",
        switches=(
            "--disable-fast-image-processor",
            "--keep-mm-feature-on-device",
            "--enable-broadcast-mm-inputs-process",
            "--enable-prefix-mm-cache",
            "--enable-mm-global-cache",
            "--mm-enable-dp-encoder",
            "--enable-precise-embedding-interpolation",
        ),
        values=(
            "--mm-attention-backend",
            "--mm-max-concurrent-calls",
            "--mm-per-request-timeout",
            "--mm-process-config",
            "--limit-mm-data-per-request",
            "--encoder-transfer-backend",
        ),
        lists=("--encoder-urls",),
    ),
    NoEffect(
        "weights are read once, in load order, straight into memory, and nothing is downloaded to disk",
        switches=(
            "--weight-loader-disable-mmap",
            "--weight-loader-prefetch-checkpoints",
            "--remote-instance-weight-loader-start-seed-via-transfer-engine",
        ),
        values=(
            "--weight-loader-prefetch-num-threads",
            "--startup-weight-load-mode",
            "--download-dir",
            "--remote-instance-weight-loader-backend",
            "--remote-instance-weight-loader-seed-instance-ip",
            "--remote-instance-weight-loader-seed-instance-service-port",
            "--remote-instance-weight-loader-send-weights-group-ports",
        ),
    ),
    NoEffect(
        "adapters are not served",
        switches=("--enable-lora-overlap-loading",),
        values=(
            "--max-lora-rank",
            "--max-loras-per-batch",
            "--max-loaded-loras",
            "--lora-eviction-policy",
            "--lora-backend",
            "--max-lora-chunk-size",
            "--lora-drain-wait-threshold",
        ),
        lists=("--lora-target-modules",),
    ),
    NoEffect(
        "there is no speculative decoding",
        switches=("--enable-multi-layer-eagle", "--enable-draft-weights-cpu-backup"),
        values=(
            "--speculative-draft-model-revision",
            "--speculative-draft-load-format",
            "--speculative-draft-model-quantization",
            "--speculative-draft-attention-backend",
            "--speculative-num-steps",
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
            "--speculative-accept-threshold-single",
            "--speculative-accept-threshold-acc",
            "--speculative-token-map",
            "--speculative-attention-mode",
            "--speculative-moe-runner-backend",
            "--speculative-moe-a2a-backend",
            "--speculative-ngram-min-bfs-breadth",
            "--speculative-ngram-max-bfs-breadth",
            "--speculative-ngram-match-type",
            "--speculative-ngram-max-trie-depth",
            "--speculative-ngram-capacity",
        ),
    ),
    NoEffect(
        "there is no grammar-constrained decoding yet",
        switches=("--constrained-json-disable-any-whitespace", "--disable-outlines-disk-cache"),
        values=("--grammar-backend", "--constrained-json-whitespace-pattern"),
    ),
    NoEffect(
        "nothing is offloaded or handed to other servers",
        switches=("--enable-weights-cpu-backup", "--disaggregation-decode-enable-offload-kvcache"),
        values=(
            "--offload-group-size",
            "--offload-num-in-group",
            "--offload-prefetch-step",
            "--offload-mode",
            "--disaggregation-transfer-backend",
            "--disaggregation-bootstrap-port",
            "--disaggregation-ib-device",
            "--disaggregation-decode-polling-interval",
            "--pdmux-config-path",
            "--sm-group-num",
        ),
    ),
    NoEffect(
        "the engine waits without using the CPU when it is idle",
        switches=("--sleep-on-idle",),
    ),
    NoEffect(
        "an engine that is stuck is ended (--watchdog-timeout) and writes then where its threads stood",
        values=("--soft-watchdog-timeout",),
    ),
    NoEffect(
        "the warm-up is one real prefill and decode",
        values=("--warmups",),
    ),
    NoEffect(
        "every step's tokens are sent as they come",
        switches=("--incremental-streaming-output",),
        values=("--stream-interval",),
    ),
    NoEffect(
        "one process tokenizes, one request at a time",
        switches=(
            "--enable-tokenizer-batch-encode",
            "--disable-tokenizer-batch-decode",
            "--enable-dynamic-batch-tokenizer",
        ),
        values=(
            "--tokenizer-worker-num",
            "--dynamic-batch-tokenizer-batch-size",
            "--dynamic-batch-tokenizer-batch-timeout",
        ),
    ),
    NoEffect(
        "there is one log, and --log-level sets what it holds",
        switches=("--show-time-cost", "--enable-request-time-stats-logging"),
        values=(
            "--log-level-http",
            "--log-requests-level",
            "--log-requests-format",
            "--decode-log-interval",
            "--gc-warning-threshold-secs",
        ),
        lists=("--log-requests-target", "--uvicorn-access-log-exclude-prefixes", "--gc-threshold"),
    ),
    NoEffect(
        "memory can always be given back and taken again (docs/weights.md)",
        switches=("--enable-memory-saver",),
    ),
    NoEffect("metrics are always there, at /metrics", switches=("--enable-metrics",)),
    NoEffect(
        "metrics are what they are (docs/operations.md)",
        switches=(
            "--enable-mfu-metrics",
            "--enable-metrics-for-all-schedulers",
            "--collect-tokens-histogram",
        ),
        values=(
            "--tokenizer-metrics-custom-labels-header",
            "--export-metrics-to-file-dir",
        ),
        lists=(
            "--tokenizer-metrics-allowed-custom-labels",
            "--bucket-time-to-first-token",
            "--bucket-inter-token-latency",
            "--bucket-e2e-request-latency",
            "--prompt-tokens-buckets",
            "--generation-tokens-buckets",
        ),
    ),
    NoEffect(
        "no route shows it",
        values=("--file-storage-path",),
    ),
    NoEffect(
        "logits are not searched for NaN",
        switches=("--enable-nan-detection", "--crash-on-nan"),
    ),
    NoEffect(
        "SGLang itself no longer uses it",
        switches=("--prefill-round-robin-balance",),
        values=("--custom-sigquit-handler",),
    ),
)
