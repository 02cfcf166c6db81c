"""A load from its beginning to the first bytes on their way: the checkpoint opened, memory and reads planned. No torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.engine.device import BadDevice, choose_device, choose_dtype, plain_device
from headrace.engine.loading.checkpoint import Checkpoint, decode_text, eos_token_ids, open_checkpoint
from headrace.engine.loading.embedding_rows import Table, table_of
from headrace.engine.loading.load_report import LoadReport
from headrace.engine.loading.load_settings import load_settings
from headrace.engine.loading.weight_stream import start_transfer, verifier_of_checkpoint
from headrace.engine.loading.weights import ArenaPlan, place_tensors, plan_arena
from headrace.engine.memory import MemoryPlan
from headrace.engine.sizing import choose_context_length, plan_device_memory
from headrace.ipc.messages import Accepting, LogLine, ModelInfo
from headrace.ipc.options import EngineOptions
from headrace.ipc.timeline import Timeline
from headrace.models.decoder.config import DecoderConfig
from headrace.models.layout import Layout
from headrace.models.registry import layout_of, read_config
from headrace.source.files import CONFIG_NAME, GENERATION_CONFIG_NAME
from headrace.stream.arena import Arena
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, plan_reads
from headrace.stream.transfer.transfer import Transfer

if TYPE_CHECKING:
    from headrace.stream.verify.verifier import BlockVerifier


@dataclass(frozen=True, slots=True)
class Load:
    """A load under way.

    Attributes:
        table: where the embedding's rows are read from; None where nothing is read.
        begun_s: the timeline's time when its transfer began.
    """

    checkpoint: Checkpoint
    config: DecoderConfig
    context_length: int
    device: str
    memory: MemoryPlan
    layout: Layout
    arena_plan: ArenaPlan
    arena: Arena
    table: Table | None
    transfer: Transfer
    verifier: "BlockVerifier | None"
    bytes_total: int
    begun_s: float

    @property
    def is_dummy(self) -> bool:
        """Nothing is read: the weights are random."""
        return not self.checkpoint.shards

    @property
    def ended_s(self) -> float:
        """The timeline's time when its transfer ended, or now."""
        return self.begun_s + self.transfer.progress().seconds


def begin_load(options: EngineOptions, report: LoadReport, timeline: Timeline) -> Load:
    """Open the checkpoint, plan, and start reading; sends ModelInfo, and Accepting once the bytes are on their way.

    Raises:
        HeadraceError: of every kind that the options, the store, the checkpoint or the machine can cause.
    """
    settings = load_settings(options.load_config)
    checkpoint = open_checkpoint(options, timeline)
    with timeline.phase("plan"):
        # Random weights have no file that could hold a head of its own.
        held = [name for shard in checkpoint.shards for name in shard.tensors] or None
        config = read_config(checkpoint.config, held)
        context_length = choose_context_length(options, config)
        layout = layout_of(checkpoint.config, held)
        arena_plan = plan_arena(layout, choose_dtype(options, checkpoint.config, checkpoint.shards))
        dummy = options.load_format == "dummy"
        placements = [] if dummy else place_tensors(layout, arena_plan, checkpoint.shards, checkpoint.where)
        report.send(_model_info(checkpoint, config, context_length))

        def plan_memory(device: str) -> MemoryPlan:
            planned = plan_device_memory(options, config, arena_plan, context_length, device)
            report.send(LogLine("info", planned.describe()))
            return planned

        device, memory = plain_device(options), None
        if device is not None:
            # Before the bytes: where the plan is wrong, the system may end this process while they come.
            memory = plan_memory(device)
        arena = Arena(arena_plan.size_bytes)
        plan = plan_reads(placements, settings.chunk_bytes or DEFAULT_CHUNK_BYTES)
        verifier = None if dummy else verifier_of_checkpoint(options, checkpoint)
        transfer = start_transfer(settings, checkpoint, plan, arena, verifier)
        begun_s = timeline.now()
    report.transfer, report.phase = transfer, "streaming weights"
    if device is None or memory is None:  # torch has to be asked, for which the first byte did not wait
        with timeline.phase("import torch"):
            device = _device_by_torch(options)
        memory = plan_memory(device)
    report.send(Accepting(memory.pool_tokens))
    return Load(
        checkpoint=checkpoint,
        config=config,
        context_length=context_length,
        device=device,
        memory=memory,
        layout=layout,
        arena_plan=arena_plan,
        arena=arena,
        table=table_of(layout, arena_plan, placements),
        transfer=transfer,
        verifier=verifier,
        bytes_total=plan.bytes_total,
        begun_s=begun_s,
    )


def _device_by_torch(options: EngineOptions) -> str:
    device = choose_device(options)
    if options.enable_deterministic_inference and device != "cpu":
        raise BadDevice(
            "--enable-deterministic-inference: on a GPU nothing shows yet that a text is the same in any company.",
            remedy="Use --device cpu, or leave the flag away.",
        )
    return device


def _model_info(checkpoint: Checkpoint, config: DecoderConfig, context_length: int) -> ModelInfo:
    def text_of(name: str) -> str:
        return decode_text(checkpoint.files.get(name, b""), f"{checkpoint.where}/{name}")

    return ModelInfo(
        config=text_of(CONFIG_NAME),
        generation_config=text_of(GENERATION_CONFIG_NAME),
        tokenizer_files=dict(checkpoint.tokenizer_files),
        context_length=context_length,
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids(checkpoint),
    )
