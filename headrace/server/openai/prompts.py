"""From a request's prompt or messages to token ids. Runs in a worker thread, except for the checks of form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.server.errors import invalid, not_supported_yet
from headrace.server.openai.checks import check_context, check_prompt_length, check_token_ids
from headrace.server.openai.echo import Echo, echo_ids, echo_text
from headrace.server.openai.protocol import ChatMessage, ChatRequest, CompletionRequest, SamplingRequest
from headrace.server.openai.served_model import ServedModel
from headrace.server.text_threads import LARGE_TEXT

PROMPTS_AT_MOST = 1024

# What a template gets from the request's own fields; chat_template_kwargs may not replace it.
_RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self"}
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for the engine, and for the answer if that begins with it."""

    ids: list[int]
    echo: Echo | None = None


def split_prompts(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """The four forms of `prompt` as a list of texts or of token ids, in order. Raises ApiError 400."""
    prompts: list[str | list[int]]
    if isinstance(prompt, str):
        prompts = [prompt]
    elif prompt and all(isinstance(item, int) for item in prompt):
        prompts = [[item for item in prompt if isinstance(item, int)]]
    else:
        prompts = [item for item in prompt if not isinstance(item, int)]
        if len(prompts) != len(prompt) or len({type(item) for item in prompts}) > 1:
            raise invalid("`prompt` mixes strings and token ids; send one kind.", "prompt")
    if not prompts:
        raise invalid("`prompt` is an empty list.", "prompt", "empty_prompt")
    if len(prompts) > PROMPTS_AT_MOST:
        raise invalid(f"`prompt` has {len(prompts)} prompts; {PROMPTS_AT_MOST} are the most.", "prompt")
    for position, item in enumerate(prompts):
        if not item:
            where = "`prompt`" if len(prompts) == 1 else f"Prompt {position} of `prompt`"
            raise invalid(f"{where} is empty; there is nothing to continue.", "prompt", "empty_prompt")
    return prompts


def encode_prompts(
    model: ServedModel, request: CompletionRequest, prompts: Sequence[str | list[int]], *, echo: bool
) -> list[Prompt]:
    """Token ids of each prompt, special tokens added to texts only. Raises ApiError 400.

    An echo of token ids leaves special tokens out as the request says; a text is echoed as it is.
    """
    encoded = []
    for prompt in prompts:
        heard: Echo | None = None
        if isinstance(prompt, str):
            ids = _encode(model, request, prompt, "prompt", add_special_tokens=True)
            if echo:
                heard = echo_text(model.tokenizer, ids, prompt)
        else:
            ids = prompt
            check_context(len(ids), request, model.context_length, "prompt")
            check_token_ids(ids, model.vocab_size, "prompt")
            if echo:
                skip = request.skip_special_tokens is not False
                heard = echo_ids(model.tokenizer, ids, skip_special_tokens=skip)
        encoded.append(Prompt(ids, heard))
    return encoded


def render_chat(model: ServedModel, request: ChatRequest) -> str:
    """The conversation as the prompt's text. Raises ApiError 400, with the template's own words if it refuses."""
    if model.template is None:
        raise invalid(
            "This model has no chat template, so messages cannot be turned into a prompt. Use /v1/completions, "
            "or have the server started with --chat-template."
            + (f" ({model.template_problem})" if model.template_problem else ""),
            "messages",
            "no_chat_template",
        )
    kwargs: dict[str, Any] = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    try:
        return model.template.render(
            template_messages(request.messages),
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            **kwargs,
        )
    except HeadraceError as error:
        raise invalid(str(error), "messages", "template_error") from None


def encode_chat(model: ServedModel, request: ChatRequest, text: str) -> Prompt:
    """Token ids of a rendered conversation, which holds its special tokens already. Raises ApiError 400."""
    return Prompt(_encode(model, request, text, "messages", add_special_tokens=False))


def check_chat(request: ChatRequest) -> None:
    """Every check of form that needs no model. Raises ApiError 400."""
    if not request.messages:
        raise invalid("`messages` is empty; there is nothing to answer.", "messages", "empty_prompt")
    template_messages(request.messages)
    for name in request.chat_template_kwargs or {}:
        if name in _RESERVED_VARIABLES:
            raise invalid(f"`chat_template_kwargs` may not hold `{name}`.", "chat_template_kwargs")
    if request.continue_final_message:
        if request.messages[-1].role != "assistant":
            raise invalid(
                "`continue_final_message` needs an assistant's message at the end of `messages`.",
                "continue_final_message",
            )
        if request.add_generation_prompt:
            raise invalid(
                "`continue_final_message` and `add_generation_prompt` exclude each other.",
                "continue_final_message",
            )


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates read them: content as one text (parts joined by a line break), no nulls.

    Raises ApiError 400 for parts and roles that are not understood yet.
    """
    plain: list[dict[str, Any]] = []
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if (
            message.tool_calls
            or message.tool_call_id is not None
            or message.function_call is not None
            or message.role in ("tool", "function")
        ):
            raise not_supported_yet(f"{where}.tool_calls", "a call of a tool, or its result")
        content = message.content
        if isinstance(content, list):
            texts = []
            for part in content:
                if part.type != "text" or part.text is None:
                    raise not_supported_yet(
                        f"{where}.content", f"a part of type {part.type[:40]!r}; text is understood"
                    )
                texts.append(part.text)
            content = "\n".join(texts)
        entry = {"role": message.role, "content": content or ""}
        if message.name is not None:
            entry["name"] = message.name
        if message.reasoning_content is not None:
            entry["reasoning_content"] = message.reasoning_content
        plain.append(entry)
    return plain


def _encode(
    model: ServedModel, request: SamplingRequest, text: str, param: str, *, add_special_tokens: bool
) -> list[int]:
    if len(text) >= LARGE_TEXT:
        # Refused by its length where that is enough: encoding it would take long and a great deal of memory.
        fewest = model.tokenizer.fewest_tokens(text)
        check_prompt_length(fewest, request, model.context_length, param, at_least=True)
    try:
        ids = model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except HeadraceError as error:
        raise invalid(str(error), param) from None
    if not ids:
        raise invalid(f"`{param}` holds no token; there is nothing to continue.", param, "empty_prompt")
    check_context(len(ids), request, model.context_length, param)
    return ids
