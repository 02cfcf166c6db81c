"""The checkpoint that is to take the served one's place: opened, compared with it, and read. No torch.

Everything that can be refused is refused here, before a byte of a weight is read.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.engine.change.served import Served
from headrace.engine.device import choose_dtype
from headrace.engine.loading.checkpoint import Checkpoint, eos_token_ids, open_checkpoint
from headrace.engine.loading.load_settings import load_settings
from headrace.engine.loading.weight_stream import start_transfer, verifier_of_checkpoint
from headrace.engine.loading.weights import place_tensors, plan_arena
from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.decoder.config import DecoderConfig
from headrace.models.registry import family_of, layout_of, read_config
from headrace.source.objects import ObjectInfo
from headrace.stream.arena import Arena
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, ReadPlan, plan_reads
from headrace.stream.transfer.transfer import Transfer

if TYPE_CHECKING:
    from headrace.stream.verify.verifier import BlockVerifier

# Fields of a config that decide about shapes of parameters or of the KV cache, with config.json's names for them.
_SHAPES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "attention_bias": "biases of q, k and v",
    "output_bias": "a bias of the attention's output",
    "mlp_bias": "biases of the MLP",
    "query_key_norm": "norms of q and k",
    "tie_word_embeddings": "tie_word_embeddings",
}


class NotInterchangeable(HeadraceError):
    """A checkpoint of another shape than the served one's: its weights do not fit into that one's place."""

    def __init__(self, where: str, facts: list[str]) -> None:
        super().__init__(
            f"{where} cannot take the place of what is served: {'; '.join(facts)}.",
            remedy="Name a checkpoint of the same architecture and shapes, or start a server on this one.",
        )


@dataclass(frozen=True, slots=True)
class Successor:
    """An opened checkpoint whose weights fit into the served one's place.

    Attributes:
        model: a URI or a folder, as the user wrote it.
        eos_token_ids: as config.json and generation_config.json name them.
        verifier: proves what is read; None where nothing does.
    """

    model: str
    checkpoint: Checkpoint
    config: DecoderConfig
    plan: ReadPlan
    eos_token_ids: tuple[int, ...]
    verifier: "BlockVerifier | None"

    @property
    def items(self) -> tuple[ObjectInfo, ...]:
        """The weights' objects as they were listed."""
        return tuple(shard.item for shard in self.checkpoint.shards)

    def close(self) -> None:
        """End what proves it, and the connections that it was opened with, unless a transfer has taken them."""
        self.checkpoint.pool.abort()
        if self.verifier is not None:
            self.verifier.close()


def open_successor(model: str, served: Served, options: EngineOptions) -> Successor:
    """List it, read config.json and all headers, and compare; tokenizer files are not needed. `close` it at the end.

    Raises:
        NotInterchangeable: it has another architecture, shapes, dtype or a shorter context.
        NotVerifiable: it must be, and is not.
        HeadraceError: of every kind that a wrong name, a store or a broken checkpoint can cause.
    """
    # What is read counts: a server that began with random weights may get real ones.
    load_format = "auto" if options.load_format == "dummy" else options.load_format
    asked = msgspec.structs.replace(options, model=model, tokenizer_path=None, load_format=load_format)
    checkpoint = open_checkpoint(asked, Timeline(time.monotonic()))
    try:
        return _successor(model, checkpoint, served, asked)
    except BaseException:
        checkpoint.pool.abort()
        raise


def _successor(model: str, checkpoint: Checkpoint, served: Served, options: EngineOptions) -> Successor:
    held = [name for shard in checkpoint.shards for name in shard.tensors]
    family = family_of(checkpoint.config)
    config = read_config(checkpoint.config, held)
    layout = layout_of(checkpoint.config, held)
    arena_plan = plan_arena(layout, choose_dtype(options, checkpoint.config, checkpoint.shards))
    if facts := differences(served, family, config, arena_plan.dtype):
        raise NotInterchangeable(checkpoint.where, facts)
    assert arena_plan == served.arena_plan, "the same shapes make the same arena"
    placements = place_tensors(layout, arena_plan, checkpoint.shards, checkpoint.where)
    chunk_bytes = load_settings(options.load_config).chunk_bytes or DEFAULT_CHUNK_BYTES
    plan = plan_reads(placements, chunk_bytes)
    ends = eos_token_ids(checkpoint)
    verifier = verifier_of_checkpoint(options, checkpoint)
    if verifier is not None and options.load_config.verify == "require":
        try:
            verifier.ask()  # rather now than over weights that are replaced already
        except BaseException:
            verifier.close()
            raise
    return Successor(model, checkpoint, config, plan, ends, verifier)


def differences(served: Served, family: str, config: DecoderConfig, dtype: str) -> list[str]:
    """What keeps a checkpoint from taking the served one's place, each as a few words; empty where nothing does."""
    facts: list[str] = []
    if family != served.family:
        return [f"its family is {family}, not {served.family}"]
    for field, name in _SHAPES.items():
        new, old = getattr(config, field), getattr(served.config, field)
        if new != old:
            facts.append(f"{name} is {new}, not {old}")
    if config.rope.depends_on_length != served.config.rope.depends_on_length:
        facts.append("its rotary scaling is of another kind")
    if config.context_length < served.context_length:
        facts.append(
            f"its context is {config.context_length:,} tokens, and requests may have {served.context_length:,} "
            "(--context-length)"
        )
    if dtype != served.arena_plan.dtype:
        facts.append(
            f"its dtype is {dtype}, not {served.arena_plan.dtype} (a server with --dtype "
            f"{served.arena_plan.dtype} converts it)"
        )
    return facts


def begin_stream(successor: Successor, arena: Arena, options: EngineOptions) -> Transfer:
    """Begin to read all weights into an arena of the served one's plan."""
    settings = load_settings(options.load_config)
    return start_transfer(settings, successor.checkpoint, successor.plan, arena, successor.verifier)
