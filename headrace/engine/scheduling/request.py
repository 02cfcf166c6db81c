"""A request as the engine's pure parts see it, and what one step computes of it."""

from dataclasses import dataclass, field

from headrace.engine.scheduling.prefix_tree import PageNode
from headrace.ipc.messages import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way.

    Attributes:
        arrival: the scheduler's count of arrivals; a retracted request keeps its own.
        output: generated tokens; they outlive a retraction.
        computed: tokens (prompt first, then output) whose keys and values are in the pool.
        pages: pages that hold them, in order; the first ones may be the prefix tree's.
        node: the tree's node that the request builds on and has locked, if any.
        shared: how many of `pages` are the tree's.
        pages_changed: grows when a page that was in `pages` already is exchanged for another.
        cached_tokens: prompt tokens found in the prefix cache when it was first admitted; None before.
    """

    rid: str
    prompt: list[int]
    sampling: SamplingParams
    priority: int = 0
    arrival: int = 0
    output: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    node: PageNode | None = None
    shared: int = 0
    pages_changed: int = 0
    cached_tokens: int | None = None

    @property
    def has_begun(self) -> bool:
        """It was admitted, if only to lose its place again."""
        return self.cached_tokens is not None

    @property
    def length(self) -> int:
        """Tokens so far, prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def most_tokens(self) -> int:
        """Tokens at the end, if nothing stops it earlier."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def is_decoding(self) -> bool:
        """Only its newest token, a generated one, is still to be computed."""
        return bool(self.output) and self.computed == self.length - 1

    @property
    def is_scored(self) -> bool:
        """The logprobs of its prompt are wanted, and not all known: every token of it is to be computed."""
        return self.sampling.prompt_logprobs is not None and not self.output

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: smaller is served earlier and retracted later."""
        return (-self.priority, self.arrival)

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output."""
        if end <= len(self.prompt):
            return self.prompt[start:end]
        split = len(self.prompt)
        return self.prompt[start:split] + self.output[max(0, start - split) : end - split]


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward pass computes.

    Attributes:
        prefills: requests with how many of their next tokens are computed.
        decodes: requests whose newest token is computed.
    """

    prefills: tuple[tuple[Request, int], ...]
    decodes: tuple[Request, ...]

    def requests(self) -> "list[Request]":
        """All whose tokens are computed, in the order of the step's rows."""
        return [*(request for request, _ in self.prefills), *self.decodes]

    def finished_prefills(self) -> list[Request]:
        """The requests whose last known token is computed by this step's prefills."""
        return [request for request, count in self.prefills if request.computed + count == request.length]

    def sampled(self) -> list[Request]:
        """The requests that get a token from this step: finished prefills, then decodes."""
        return [r for r in self.finished_prefills() if r.sampling.max_tokens > 0] + list(self.decodes)
