"""What the front tells an engine process when it starts it. No secret belongs here."""

from typing import Literal

import msgspec

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "bfloat16", "float16", "float32"]
LoadFormat = Literal["auto", "safetensors", "runai_streamer", "dummy"]
Verify = Literal["manifest", "auto", "require", "off"]

DEFAULT_MEM_FRACTION = 0.85


class LoadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """--model-loader-extra-config: SGLang's keys for its object-store loader, and our own.

    Attributes:
        distributed: share the reading between ranks; without effect with one rank.
        concurrency: how many connections (threads) read at once; None lets the streamer choose.
        memory_limit: bytes that staging buffers may take; -1 means no limit, 0 the smallest that works,
            None the default.
        verify: "manifest" (None too) compares what is read with the manifest beside the weights, where there is one;
            "auto" without one with the CRC that the store keeps of each object; "require" fails where an object has
            neither; "off".
        restart_on_change: load again from a new listing where an object is replaced under the load.
    """

    distributed: bool | None = None
    concurrency: int | None = None
    memory_limit: int | None = None
    verify: Verify | None = None
    restart_on_change: bool | None = None


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the server's flags that an engine needs; names and meanings are SGLang's.

    Attributes:
        model: the model as the user wrote it: an object-store URI or a folder.
        tokenizer_path: where the tokenizer is, if not beside the weights; a URI or a folder.
        context_length: tokens that one request may take, prompt and answer; None takes the model's own.
        mem_fraction_static: share (0..1) of the memory that weights and KV cache may take; None takes
            DEFAULT_MEM_FRACTION, and less where less can be had.
        max_total_tokens: size of the KV pool in tokens; None fills the share.
        max_queued_requests: requests that may wait until they are computed; one more is refused. None: no limit.
        chunked_prefill_size: prompt tokens computed in one step at the most.
        max_prefill_tokens: the same limit for all prompts of a step together; the smaller one counts.
        page_size: tokens in one page of the KV pool.
        disable_radix_cache: compute every prompt from its first token.
        enable_priority_scheduling: a request's `priority` counts before its time of arrival.
        enable_deterministic_inference: a greedy text does not depend on what runs beside it.
    """

    model: str
    tokenizer_path: str | None = None
    device: Device = "auto"
    dtype: DType = "auto"
    load_format: LoadFormat = "auto"
    load_config: LoadConfig = LoadConfig()
    context_length: int | None = None
    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    chunked_prefill_size: int = 512
    max_prefill_tokens: int = 16384
    page_size: int = 16
    disable_radix_cache: bool = False
    enable_priority_scheduling: bool = False
    enable_deterministic_inference: bool = False
    random_seed: int | None = None
    skip_server_warmup: bool = False
    log_level: str = "info"


class EngineStart(msgspec.Struct, frozen=True):
    """The one line of JSON that an engine process reads from its standard input when it starts.

    The front keeps that pipe open for as long as the engine may live: its end (EOF) ends the engine.

    Attributes:
        executed_s: time.monotonic() just before the engine's exec: from there its phases are counted. None: from its
            own first instruction.
    """

    address: str
    options: EngineOptions
    executed_s: float | None = None
