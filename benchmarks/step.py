"""One step of the engine's model: n decoding requests and c tokens of a prompt, in CPU and wall seconds.

Weights are random, of SmolLM2-135M's shape or that of a folder with a config.json. What is timed is the forward
pass with its preparation (slots, masks) and a greedy choice, not HTTP, scheduling and detokenizing.

    python benchmarks/step.py                                    # 10 decodes; 10 and 74 tokens; 512 tokens; ...
    python benchmarks/step.py --decodes 10 --chunk 74 --context 3000 --decode-context 200
    python benchmarks/step.py --profile --decodes 10             # torch's table of operations

CPU seconds are those of all threads, the time that an idle one waits awake included. The least of many is shown.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch

from headrace.engine.device import set_threads
from headrace.engine.loading.memory_views import fill_with_noise, make_cache, torch_dtype
from headrace.models.batch import ForwardBatch, KVCache, PrefillSpan
from headrace.models.decoder.arithmetic import FASTEST
from headrace.models.decoder.forward import DecoderModel
from headrace.models.decoder.invariant import ROW_INVARIANT
from headrace.models.registry import layout_of, read_config

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True, "vocab_size": 49152,
}  # fmt: skip
# decodes, context of each; tokens of a chunk, context with the chunk
STEPS = ((1, 200, 0, 0), (10, 200, 0, 0), (10, 200, 74, 3000), (10, 200, 74, 6000), (0, 0, 512, 512), (0, 0, 2048, 6000))  # fmt: skip


def main() -> int:
    """Time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="has a config.json (default: SmolLM2's shape)")
    parser.add_argument("--decodes", type=int, help="decoding requests")
    parser.add_argument("--decode-context", type=int, default=200, help="tokens of each (default 200)")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a prompt")
    parser.add_argument(
        "--context", type=int, default=0, help="tokens up to the chunk's end (default: chunk)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--deterministic", action="store_true", help="as --enable-deterministic-inference")
    parser.add_argument("-n", type=int, default=20, help="steps of each kind (default 20)")
    parser.add_argument(
        "--profile", action="store_true", help="print what torch's profiler saw of five steps"
    )
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text()) if arguments.folder else SMOLLM2
    threads = set_threads()
    model = _model(config, torch_dtype(arguments.dtype), deterministic=arguments.deterministic)
    steps = STEPS
    if arguments.decodes is not None or arguments.chunk:
        context = max(arguments.context, arguments.chunk)
        steps = ((arguments.decodes or 0, arguments.decode_context, arguments.chunk, context),)
    print(f"{arguments.dtype}, {threads} threads, least of {arguments.n}")
    for step in steps:
        cache = _cache(model, step)
        if arguments.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                for _ in range(5):
                    _run(model, cache, step)
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))
        cpu_ms, wall_ms = _least_ms(model, cache, step, arguments.n)
        decodes, decode_context, chunk, context = step
        print(
            f"{decodes:3d} decodes over {decode_context:5d}, {chunk:5d} prompt tokens over {context:5d}: "
            f"CPU {cpu_ms:7.1f} ms, wall {wall_ms:7.1f} ms",
            flush=True,
        )
    return 0


def _model(config: dict[str, object], dtype: torch.dtype, *, deterministic: bool) -> DecoderModel:
    parameters = {spec.name: torch.empty(spec.shape, dtype=dtype) for spec in layout_of(config).parameters}
    fill_with_noise(parameters, 0)
    return DecoderModel(read_config(config), parameters, ROW_INVARIANT if deterministic else FASTEST)


def _cache(model: DecoderModel, step: tuple[int, int, int, int]) -> KVCache:
    decodes, decode_context, _, context = step
    config = model.config
    slots = decodes * decode_context + context
    cache = make_cache(
        config.num_layers, slots, config.num_kv_heads, config.head_dim, model.dtype, model.device
    )
    fill_with_noise({str(place): tensor for place, tensor in enumerate(cache.keys + cache.values)}, 1)
    return cache


def _run(model: DecoderModel, cache: KVCache, step: tuple[int, int, int, int]) -> torch.Tensor:
    decodes, decode_context, chunk, context = step
    prompt_slots = torch.arange(context)
    decode_slots = context + torch.arange(decodes * decode_context).view(decodes, decode_context)
    prefills = (PrefillSpan(0, chunk, prompt_slots),) if chunk else ()
    positions = [
        torch.arange(context - chunk, context),
        torch.full((decodes,), decode_context - 1, dtype=torch.int64),
    ]
    rows = chunk + decodes
    with torch.inference_mode():
        batch = ForwardBatch(
            input_ids=torch.arange(rows) + 100,
            positions=torch.cat(positions),
            write_slots=torch.cat((prompt_slots[context - chunk :], decode_slots[:, -1:].flatten())),
            prefills=prefills,
            decode_slots=decode_slots,
            decode_lengths=torch.full((decodes,), decode_context),
            logit_rows=torch.arange(chunk if decodes else rows - 1, rows),
        )
        return model.forward(batch, cache).argmax(-1)


def _least_ms(
    model: DecoderModel, cache: KVCache, step: tuple[int, int, int, int], runs: int
) -> tuple[float, float]:
    least_cpu, least_wall = float("inf"), float("inf")
    for _ in range(runs):
        wall, cpu = time.perf_counter(), _cpu_s()
        _run(model, cache, step)
        least_cpu = min(least_cpu, _cpu_s() - cpu)
        least_wall = min(least_wall, time.perf_counter() - wall)
    return least_cpu * 1000, least_wall * 1000


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
