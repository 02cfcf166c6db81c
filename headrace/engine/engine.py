"""The step loop: messages in, a forward pass, tokens out. Blocks while there is nothing to do."""

import torch

from headrace.engine.kv_pool import PagePool
from headrace.engine.runner import Runner
from headrace.engine.sampler import Sampler
from headrace.engine.scheduler import Request, Scheduler
from headrace.ipc.channel import EngineChannel
from headrace.ipc.messages import (
    Abort,
    FrontMessage,
    Generate,
    RequestFailed,
    SamplingParams,
    StepOutput,
    TokenOutput,
)
from headrace.ipc.options import EngineOptions
from headrace.models.batch import KVCache
from headrace.models.decoder.forward import DecoderModel

_WARM_UP_TOKENS = 16


class Engine:
    """One model with everything that makes tokens. One thread owns it."""

    def __init__(
        self,
        *,
        model: DecoderModel,
        cache: KVCache,
        options: EngineOptions,
        pool_tokens: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
    ) -> None:
        pool = PagePool(pool_tokens // options.page_size, options.page_size)
        self.scheduler = Scheduler(
            pool,
            max_running_requests=options.max_running_requests,
            prefill_budget=options.chunked_prefill_size,
        )
        self.runner = Runner(model, cache, options.page_size, device)
        self._sampler = Sampler(options.random_seed)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pool_tokens = pool_tokens

    def warm_up(self) -> None:
        """A real prefill and a real decode, so that the first request finds every kernel ready."""
        sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        tokens = max(1, min(_WARM_UP_TOKENS, self._pool_tokens - sampling.max_tokens))
        self.scheduler.add(Request("warm-up", [0] * tokens, sampling))
        while self.scheduler.has_work:
            self.step()

    def serve(self, channel: EngineChannel) -> None:
        """Answer requests until the front says Stop.

        Raises:
            Exception: what a step raised; every request has been failed before.
        """
        while True:
            message = channel.receive(0 if self.scheduler.has_work else None)
            while message is not None:
                if not isinstance(message, Generate | Abort):
                    return
                failed = self.take(message)
                if failed is not None:
                    channel.send(failed)
                message = channel.receive(0)
            if not self.scheduler.has_work:
                continue
            try:
                outputs = self.step()
            except Exception as error:
                for request in self.scheduler.requests():
                    text = f"The engine failed while it computed this request: {error}"
                    channel.send(RequestFailed(request.rid, 500, "engine_error", text))
                raise
            if outputs:
                channel.send(StepOutput(tuple(outputs)))

    def step(self) -> list[TokenOutput]:
        """Compute one step of what is running; its tokens."""
        step = self.scheduler.plan()
        logits = self.runner.run(step)
        sampled = step.sampled()
        tokens = self._sampler.sample(logits, [(r.rid, r.sampling) for r in sampled]) if sampled else []
        outputs = self.scheduler.commit(step, tokens, self._eos_token_ids)
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.rid)
        return outputs

    def take(self, message: FrontMessage) -> RequestFailed | None:
        """Queue or abort; what to answer where the request cannot run."""
        if isinstance(message, Abort):
            if self.scheduler.abort(message.rid):
                self._forget(message.rid)
            return None
        assert isinstance(message, Generate)
        request = Request(message.rid, message.input_ids, message.sampling)
        if self.scheduler.fits(request):
            self.scheduler.add(request)
            return None
        return RequestFailed(
            message.rid,
            400,
            "kv_cache_too_small",
            f"The request needs room for {request.most_tokens:,} tokens ({len(request.prompt):,} of prompt, up to "
            f"{request.sampling.max_tokens:,} of answer), but the KV cache holds {self._pool_tokens:,}. Ask for "
            "fewer tokens, or start the server with a higher --mem-fraction-static or --max-total-tokens.",
        )

    def _forget(self, rid: str) -> None:
        self.runner.forget(rid)
        self._sampler.forget(rid)
