"""A model's chat template: messages to the prompt text, as transformers' apply_chat_template renders them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.text.tokenizer_config import (
    CONFIG_FILE,
    TokenizerConfig,
    read_json_object,
    read_tokenizer_config,
)
from headrace.text.tokenizer_error import TokenizerError

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE_FILE = "chat_template.jinja"
PROCESSOR_TEMPLATE_FILE = "chat_template.json"
# Further templates lie in these folders, each under the name that it is asked for by.
TEMPLATE_FOLDERS = ("additional_chat_templates", "templates")
_TEMPLATE_SUFFIX = ".jinja"

# Stands after the final message that the answer continues; its space shows whether the template trims messages.
# Plain ASCII, as some templates write a list of parts as Python does, with escapes.
_END_OF_MESSAGE = "HEADRACE-END-OF-THE-FINAL-MESSAGE "

# Names under which clients and templates know a message's reasoning.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class TemplateError(HeadraceError):
    """The template cannot be compiled, or cannot render these messages; the latter is the request's fault (400)."""


class ChatTemplate:
    """One or several named templates, compiled once. Safe to use from several threads at once."""

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, str], *, origin: str) -> None:
        """`sources`: name → Jinja text; `variables`: bos_token and the like; `origin`: where they are from.

        Raises TemplateError for invalid Jinja.
        """
        self._templates = {name: _compile(source, origin) for name, source in sources.items()}
        self._variables = dict(variables)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, override: str | None = None) -> "ChatTemplate | None":
        """The model's template, from base name → content; None if it has none.

        The first of these counts: `override` (a template's text), chat_template.jinja, tokenizer_config.json
        (one text, or a list of named ones), chat_template.json. What lies in TEMPLATE_FOLDERS is added by its name.
        (transformers forgets the default in tokenizer_config.json then; here it stays.) Raises TemplateError or TokenizerError where
        what is there is malformed.
        """
        config = read_tokenizer_config(files)
        if override is not None:
            return cls({"default": override}, config.named_tokens, origin="--chat-template")
        found = _find_sources(files, config)
        if found is None:
            return None
        origin, sources = found
        return cls(sources, config.named_tokens, origin=origin)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The prompt's text, BOS included where the template writes one: encode it without special tokens.

        `messages`, `tools`, `documents` and `template_kwargs` are plain JSON values. With `tools`, a template
        named "tool_use" is preferred. With `continue_final_message` the prompt ends where the text of the last
        message does, so that the answer goes on from there; no generation prompt is added then.

        Raises TemplateError: with the template's own words where it refuses the conversation; the final message
        has no text to continue, or the template changes it.
        """
        prepared = [_prepare(message) for message in messages]
        if not continue_final_message:
            return self._render(prepared, add_generation_prompt, tools, documents, template_kwargs)
        final = _mark_end(prepared)
        text = self._render(prepared, False, tools, documents, template_kwargs)
        return _cut_at_end(text, final)

    def _render(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        template = self._choose(with_tools=tools is not None)
        variables = {
            **self._variables,
            **template_kwargs,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        from headrace.text.template_environment import RefusedByTemplate

        try:
            return template.render(variables)
        except RefusedByTemplate as error:
            raise TemplateError(str(error)) from error
        except Exception as error:
            # A template is a program: adding a list to a text, say, fails with Python's own TypeError.
            raise TemplateError(
                f"The model's chat template cannot render these messages: {type(error).__name__}: {error}.",
                remedy="Check that the messages have the fields and types that the template expects.",
            ) from error

    def _choose(self, *, with_tools: bool) -> "Template":
        names = ("tool_use", "default") if with_tools else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise TemplateError(
            f"The model has several chat templates ({', '.join(sorted(self._templates))}) and none is the default.",
            remedy="Start the server with --chat-template and the one to use.",
        )


def _find_sources(files: Mapping[str, bytes], config: TokenizerConfig) -> tuple[str, dict[str, str]] | None:
    found = _find_main(files, config)
    further = {
        name.rpartition("/")[2].removesuffix(_TEMPLATE_SUFFIX): _text_of(name, content)
        for name, content in sorted(files.items())
        if name.endswith(_TEMPLATE_SUFFIX) and name.partition("/")[0] in TEMPLATE_FOLDERS
    }
    if not further:
        return found
    origin, sources = found or ("", {})
    return " and ".join(part for part in (origin, "its folder of templates") if part), sources | further


def _find_main(files: Mapping[str, bytes], config: TokenizerConfig) -> tuple[str, dict[str, str]] | None:
    if TEMPLATE_FILE in files:
        return TEMPLATE_FILE, {"default": _text_of(TEMPLATE_FILE, files[TEMPLATE_FILE])}
    processor_template = read_json_object(files, PROCESSOR_TEMPLATE_FILE).get("chat_template")
    for origin, value in ((CONFIG_FILE, config.chat_template), (PROCESSOR_TEMPLATE_FILE, processor_template)):
        if value is not None:
            return origin, _named_sources(value, origin)
    return None


def _text_of(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TemplateError(
            f"{name} is not UTF-8 text (byte {error.start}).",
            remedy="Upload it again or start the server with --chat-template.",
        ) from error


def _named_sources(value: object, origin: str) -> dict[str, str]:
    """`chat_template` is a text or a list of {"name": ..., "template": ...}."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = [(item.get("name"), item.get("template")) for item in value if isinstance(item, dict)]
    else:
        pairs = []
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise TokenizerError(
            f"chat_template in {origin} is neither a text nor a list of objects with name and template.",
            remedy="Correct the file or start the server with --chat-template.",
        )
    return dict(pairs)


def _compile(source: str, origin: str) -> "Template":
    from jinja2.exceptions import TemplateSyntaxError

    from headrace.text.template_environment import make_environment

    cause: Exception
    try:
        return make_environment().from_string(source)
    except TemplateSyntaxError as error:
        problem, cause = f"{error.message} (line {error.lineno})", error
    except RecursionError as error:
        problem, cause = "it is nested too deeply", error
    raise TemplateError(
        f"The chat template in {origin} is not valid Jinja: {problem}.",
        remedy="Correct it or start the server with another one by --chat-template.",
    ) from cause


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Put the mark after the last message's text, in place; returns that text."""
    final = messages[-1] if messages else {}
    content: Any = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _END_OF_MESSAGE
        return content
    for index in range(len(content) - 1, -1, -1) if isinstance(content, list) else ():
        part = content[index]
        if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
            marked = {**part, "text": text + _END_OF_MESSAGE}
            final["content"] = [*content[:index], marked, *content[index + 1 :]]
            return text
    raise TemplateError(
        "The final message has no text that the answer could continue.",
        remedy="Give it a text as content, or leave continue_final_message out.",
    )


def _cut_at_end(rendered: str, final: str) -> str:
    """The prompt up to the mark, as transformers cuts it: without trailing space where the template trims."""
    mark = _END_OF_MESSAGE.strip()
    end = rendered.rfind(mark)
    if end < 0 or final.strip() not in rendered:
        raise TemplateError(
            "The chat template leaves out the final message or changes its text, so the answer cannot continue it.",
            remedy="End the conversation with another message, or leave continue_final_message out.",
        )
    before = rendered[:end]
    trimmed = not rendered.startswith(_END_OF_MESSAGE, end)
    return before.rstrip() if trimmed else before


def _prepare(message: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAI's clients send, in the form that templates are written for.

    A key with null, or tool_calls with an empty list, is left out, as templates ask only whether it is there;
    reasoning is given under each of the names that templates read.
    """
    prepared = {
        key: value
        for key, value in message.items()
        if value is not None and not (key == "tool_calls" and value == [])
    }
    reasoning = next((prepared[key] for key in _REASONING_FIELDS if key in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    return prepared
