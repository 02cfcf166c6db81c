"""OpenAI's requests and responses as data: only the fields that are honoured; see `unsupported` for the rest."""

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = str
MatchedStop = int | str


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds a last chunk with the usage; `continuous_usage_stats` puts it into every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chat share. None stands for "not given" everywhere: clients send null for it."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    max_tokens: int | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(SamplingRequest, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt` has four forms: a string, strings, token ids, lists of token ids."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; only `text` parts are understood."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw | None = None


class ChatRequest(SamplingRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, object] | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """What is told of the prompts' tokens with --enable-cache-report."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Prompt tokens counted once per prompt, completion tokens summed over all choices that were generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


# Absent unless asked for; then null in the chunks before the last one.
ChunkUsage = Usage | UnsetType | None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four lists with one entry per token; the first token of an echoed prompt has no logprob.

    Attributes:
        text_offset: the character of the choice's text (echo included) at which the token begins.
        top_logprobs: the likeliest tokens' texts, and the chosen one's, with their logprobs.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class ChatTopLogprob(msgspec.Struct, frozen=True):
    """A token that might have stood there. `bytes` are those of its text; null for an id without a token."""

    token: str
    bytes: list[int] | None
    logprob: float


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A token of the message, and the likeliest ones in its place."""

    token: str
    bytes: list[int] | None
    logprob: float
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The message's tokens in order."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole text, or a piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    matched_stop: MatchedStop | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of a stream (same object name, as OpenAI has it)."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: ChunkUsage = UNSET


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's message."""

    role: str = "assistant"
    content: str


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None
    matched_stop: MatchedStop | UnsetType = UNSET


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A chat answer that is not streamed."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a chat answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    matched_stop: MatchedStop | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of a streamed chat answer."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: ChunkUsage = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/models."""

    object: str = "list"
    data: tuple[ModelCard, ...]
