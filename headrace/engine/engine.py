"""The step loop: messages in, a forward pass, tokens out. Blocks while there is nothing to do."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import torch

from headrace.engine.load_meter import LoadMeter
from headrace.engine.loading.shared_channel import Channel
from headrace.engine.runner import Runner, ScoredRows, StepLogits
from headrace.engine.sampling.logprobs import token_logprobs
from headrace.engine.sampling.sampler import BrokenLogits, Sampler
from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.pace import PrefillPace
from headrace.engine.scheduling.request import Request, Step
from headrace.engine.scheduling.scheduler import Scheduler
from headrace.ipc.messages import (
    Abort,
    CacheFlushed,
    EngineMessage,
    FlushCache,
    FrontMessage,
    Generate,
    ReleaseMemory,
    RequestFailed,
    ResumeMemory,
    SamplingParams,
    StepOutput,
    Stop,
    TokenLogprob,
    TokenOutput,
    UpdateWeights,
)
from headrace.ipc.options import EngineOptions
from headrace.models.batch import KVCache
from headrace.models.decoder.forward import DecoderModel

if TYPE_CHECKING:
    from headrace.engine.change.served import Served
    from headrace.engine.change.weight_change import WeightChanges
    from headrace.engine.loading.wave import Wave

_WARM_UP_TOKENS = 16
# So much of prompts may be on its way through the layers at once while these arrive. Hidden states take 16 MiB of it
# where they are 2,048 wide and bfloat16; without kernels the masks of 8 pieces take as much again.
_TOKENS_BEHIND_BYTES = 4096


class Engine:
    """One model with everything that makes tokens. One thread owns it.

    Attributes:
        chunk_tokens: prompt tokens that are computed together at the most.
        postponed: messages that came before the model was loaded and were to wait for that: `serve` takes them first.
    """

    def __init__(
        self,
        *,
        model: DecoderModel,
        cache: KVCache,
        options: EngineOptions,
        pool_tokens: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
        served: "Served | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`served`: what the model came from, without which its weights cannot be changed."""
        self.scheduler = Scheduler(
            PagePool(pool_tokens // options.page_size, options.page_size),
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            # Where keys depend on how long the whole prompt is, a prefix's keys serve no other prompt.
            prefix_cache=not options.disable_radix_cache and not model.config.rope.depends_on_length,
        )
        self.runner = Runner(model, cache, options.page_size, device)
        self.options = options
        self._sampler = Sampler(options.random_seed, frozenset(eos_token_ids))
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pool_tokens = pool_tokens
        self.chunk_tokens = min(options.chunked_prefill_size, options.max_prefill_tokens)
        self._pace = PrefillPace(self.chunk_tokens)
        self._prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self._clock = clock
        self._served = served
        self._changes: WeightChanges | None = None  # made, and imported, when they are first asked for
        self.postponed: deque[FrontMessage] = deque()

    def warm_up(self) -> None:
        """A real prefill and a real decode, so that the first request finds every kernel ready."""
        sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        tokens = max(1, min(_WARM_UP_TOKENS, self._pool_tokens - sampling.max_tokens))
        self.scheduler.add(Request("warm-up", [0] * tokens, sampling))
        while self.scheduler.has_work:
            self.step()
        self.scheduler.flush_cache()

    def serve(self, channel: Channel) -> None:
        """Answer requests until the front says Stop.

        Raises:
            WeightsLost: a change of weights has left nothing to serve with.
            Exception: what a step raised; every request has been failed before.
        """
        try:
            self._serve(channel)
        finally:
            if self._changes is not None:
                self._changes.close()

    def _serve(self, channel: Channel) -> None:
        meter = LoadMeter(self.scheduler, self._clock)
        while True:
            message = self._next_message(channel, 0 if self.scheduler.has_work else self._wait_s())
            while message is not None:
                if isinstance(message, Stop):
                    return
                answer = self.take(message)
                if answer is not None:
                    channel.send(answer)
                message = self._next_message(channel, 0)
            for news in self.advance():
                channel.send(news)
            if self._changes is not None:
                self._changes.raise_if_lost()
            if not self.scheduler.has_work:
                if load := meter.news():
                    channel.send(load)
                continue
            try:
                answers = self.step()
            except Exception as error:
                for request in self.scheduler.requests():
                    text = f"The engine failed while it computed this request: {error}"
                    channel.send(RequestFailed(request.rid, 500, "engine_error", text))
                raise
            # Before the answers: who has read the last one finds the engine told as idle.
            if load := meter.news():
                channel.send(load)
            for answer in answers:
                channel.send(answer)

    def _next_message(self, channel: Channel, timeout_s: float | None) -> FrontMessage | None:
        return self.postponed.popleft() if self.postponed else channel.receive(timeout_s)

    def step(self) -> list[EngineMessage]:
        """Compute one step of what is running; what it gave: a StepOutput, and failures of single requests."""
        begun = self._clock()
        step = self.scheduler.plan(self._pace.budget(somebody_waits=self.scheduler.has_decodes))
        answers = self._conclude(step, self.runner.run(step))
        self._pace.observe(
            prefill_tokens=sum(count for _, count in step.prefills),
            decodes=len(step.decodes),
            seconds=self._clock() - begun,
        )
        return answers

    def step_behind(self, wave: "Wave") -> list[EngineMessage]:
        """The same while the weights are on their way: as much of a step as came of it before it was outdated."""
        decoding = self.scheduler.has_decodes
        # Without bytes to wait for, more would only hold up those who come first.
        budget = self.chunk_tokens if wave.is_over else self._budget_behind_bytes(somebody_waits=decoding)
        answers: list[EngineMessage] = []
        for part, logits in wave.through(self.scheduler.plan(budget)):
            answers += self._conclude(part, logits)
        return answers

    def _budget_behind_bytes(self, *, somebody_waits: bool) -> int:
        """Prompt tokens of a step that waits for bytes."""
        # Who waits for a next token has seen every layer arrive, and scored prompts hold the logits of all their rows.
        if somebody_waits or any(request.is_scored for request in self.scheduler.requests()):
            return self.chunk_tokens
        return min(self.options.max_prefill_tokens, max(self.chunk_tokens, _TOKENS_BEHIND_BYTES))

    def has_room_beside(self, step: Step) -> bool:
        """Whether a request that comes while the step waits for bytes could have been computed by it."""
        budget = self._budget_behind_bytes(somebody_waits=bool(step.decodes))
        return (
            sum(count for _, count in step.prefills) < budget
            and self.scheduler.running_count < self.options.max_running_requests
        )

    def _conclude(self, step: Step, logits: StepLogits) -> list[EngineMessage]:
        """Sample and commit what a step computed."""
        for rows in logits.scored:
            self._score(rows)
        sampled = step.sampled()
        results = self._sampler.sample(logits.sampled, sampled) if sampled else []
        tokens = [None if isinstance(result, BrokenLogits) else result.token_id for result in results]
        outputs = self.scheduler.commit(step, tokens, self._eos_token_ids)
        by_rid = {
            request.rid: result.logprob
            for request, result in zip(sampled, results, strict=True)
            if not isinstance(result, BrokenLogits) and result.logprob is not None
        }
        answers: list[EngineMessage] = [
            RequestFailed(request.rid, result.status, result.code, result.message)
            for request, result in zip(sampled, results, strict=True)
            if isinstance(result, BrokenLogits)
        ]
        if outputs:
            answers.append(StepOutput(tuple(self._complete(output, by_rid) for output in outputs)))
        for request, token in zip(sampled, tokens, strict=True):
            if token is None:
                self._forget(request.rid)
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.rid)
        return answers

    def take(self, message: FrontMessage) -> EngineMessage | None:
        """Queue, abort, flush, or begin a change of weights; what to answer at once, if anything."""
        match message:
            case Generate():
                return self._queue(message)
            case Abort(rid):
                if self.scheduler.abort(rid):
                    self._forget(rid)
            case FlushCache():
                running = len(self.scheduler.requests())
                if self.scheduler.flush_cache():
                    return CacheFlushed(True, "The prefix cache is empty.")
                return CacheFlushed(
                    False,
                    f"The prefix cache is kept while there are requests ({running} now). Ask again later.",
                )
            case UpdateWeights() | ReleaseMemory() | ResumeMemory():
                return self._changes_of_weights().begin(message)
        return None

    def advance(self) -> list[EngineMessage]:
        """Go on with a change of weights, if one is under way; what to send of it."""
        return self._changes.advance() if self._changes is not None else []

    def _changes_of_weights(self) -> "WeightChanges":
        if self._changes is None:
            from headrace.engine.change.weight_change import WeightChanges

            served, self._served = self._served, None  # which holds on to its arena
            assert served is not None
            self._changes = WeightChanges(self, served)
        return self._changes

    def _wait_s(self) -> float | None:
        """How long to wait for a message while there is nothing to compute; None: until one comes."""
        return self._changes.wait_s if self._changes is not None else None

    def use(self, model: DecoderModel, eos_token_ids: tuple[int, ...]) -> None:
        """Compute with another model of the same shape from the next step on. Nothing may be running."""
        assert self.scheduler.running_count == 0
        self.runner.model = model
        self._eos_token_ids = frozenset(eos_token_ids)
        self._sampler.end_at(self._eos_token_ids)

    def fail_all(self, status: int, code: str, text: str) -> list[RequestFailed]:
        """End every request without an answer; what their askers are to be told."""
        failures: list[RequestFailed] = []
        for request in self.scheduler.requests():
            self.scheduler.abort(request.rid)
            self._forget(request.rid)
            failures.append(RequestFailed(request.rid, status, code, text))
        return failures

    def _queue(self, message: Generate) -> RequestFailed | None:
        priority = message.priority if self.options.enable_priority_scheduling else 0
        request = Request(message.rid, message.input_ids, message.sampling, priority)
        if self._changes is not None and (missing := self._changes.missing()):
            return RequestFailed(message.rid, 503, "memory_released", missing)
        if not self.scheduler.fits(request):
            return RequestFailed(
                message.rid,
                400,
                "kv_cache_too_small",
                f"The request needs room for {request.most_tokens:,} tokens ({len(request.prompt):,} of prompt, up to "
                f"{request.sampling.max_tokens:,} of answer), but the KV cache holds {self._pool_tokens:,}. Ask for "
                "fewer tokens, or start the server with a higher --mem-fraction-static or --max-total-tokens.",
            )
        if not self.scheduler.add(request):
            return RequestFailed(
                message.rid,
                503,
                "queue_full",
                f"{self.scheduler.waiting_count} requests wait already, as many as --max-queued-requests allows. "
                "Ask again later.",
            )
        return None

    def _score(self, rows: ScoredRows) -> None:
        """Keep the logprobs of a part of a prompt until its first output."""
        sampling = rows.request.sampling
        assert sampling.prompt_logprobs is not None
        known = self._prompt_logprobs.setdefault(rows.request.rid, [])
        # A request that was retracted is scored from its first token again.
        del known[rows.request.computed :]
        known += token_logprobs(rows.logits, rows.next_ids, sampling.prompt_logprobs)

    def _complete(self, output: TokenOutput, logprobs: dict[str, TokenLogprob]) -> TokenOutput:
        """Add the logprobs that were asked for."""
        prompt = self._prompt_logprobs.pop(output.rid, None)
        own = logprobs.get(output.rid)
        if prompt is None and own is None:
            return output
        return msgspec.structs.replace(
            output,
            logprobs=(own,) if own is not None and output.token_ids else (),
            prompt_logprobs=tuple(prompt or ()),
        )

    def _forget(self, rid: str) -> None:
        self.runner.forget(rid)
        self._sampler.forget(rid)
        self._prompt_logprobs.pop(rid, None)
