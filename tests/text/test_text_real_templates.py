"""The chat templates of many models, rendered with transformers' own rendering beside ours."""

from collections.abc import Callable
from typing import Any

import pytest
from real_tokenizers import files, ours, own_template, template_sources, theirs

from headrace.text.chat_template import ChatTemplate, TemplateError

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Is it <wet> & "cold" in Zürich?',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where", "enum": ["Zürich", "Bern"]}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich"}},
}
CALL_AS_TEXT = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [{"role": "user", "content": ' Hi <b>& "you"</b> é😀 \n'}]},
    "system_and_turns": {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": " Hello \n"},
            {"role": "user", "content": "Bye"},
        ]
    },
    "assistant_last": {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there \n"}]
    },
    "reasoning": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2", "reasoning_content": "One and one."},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"},
            {"role": "user", "content": "3+3?"},
            {"role": "assistant", "content": "6", "reasoning": "Three, three."},
        ]
    },
    "no_thinking": {
        "messages": [{"role": "user", "content": "Hi"}],
        "enable_thinking": False,
        "reasoning_effort": "high",
        "thinking": True,
    },
    "thinking": {
        "messages": [{"role": "user", "content": "Hi"}],
        "enable_thinking": True,
        "reasoning_effort": "low",
        "model_identity": "You are a test.",
    },
    "tools_offered": {"messages": [{"role": "user", "content": "Rain?"}], "tools": [WEATHER]},
    "tools_used": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "wet", "tool_call_id": "call12345", "name": "weather"},
            {"role": "assistant", "content": "It rains."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [WEATHER],
    },
    "tools_used_without_content": {
        "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL_AS_TEXT]},
            {"role": "tool", "content": "wet", "tool_call_id": "call12345"},
        ],
        "tools": [WEATHER],
        "documents": [{"title": "T", "text": "long"}],
    },
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "three "}]},
        ]
    },
    "wrong_order": {
        "messages": [{"role": "assistant", "content": "Hi"}, {"role": "assistant", "content": "again"}]
    },
    "unknown_role": {"messages": [{"role": "narrator", "content": "Once upon a time"}]},
}

WITH_OWN_TEMPLATE = ["llama3_1", "qwen3", "gemma3", "deepseek_v3"]
# Published templates, each beside the tokenizer of its model.
PUBLISHED = {
    "llama2": "llama2:7b",
    "llama3_1": "llama3_1",
    "gptoss": "gptoss",
    "deepseek_v3": "deepseekv3",
    "qwen3": "qwen3_instruct_2507",
    "gemma3": "gemma3:1b",
}


def text_or_refusal(render: Callable[[], str]) -> tuple[str | None, str]:
    try:
        return render(), ""
    except TemplateError as error:
        return None, str(error)
    except Exception as error:
        # Templates are programs: theirs fail with every kind of Python's errors.
        return None, str(error) if type(error).__name__ == "TemplateError" else ""


def compare(mine: ChatTemplate, model: str, source: str | None, **more: bool) -> list[str]:
    """Names of the conversations that are rendered, after checking that all go as with transformers."""
    rendered = []
    for name, conversation in CONVERSATIONS.items():
        arguments = {**conversation, **more}
        messages = arguments.pop("messages")
        expected, refusal = text_or_refusal(
            lambda messages=messages, arguments=arguments: theirs(model).apply_chat_template(
                messages, chat_template=source, tokenize=False, **arguments
            )
        )
        text, own_refusal = text_or_refusal(
            lambda messages=messages, arguments=arguments: mine.render(messages, **arguments)
        )
        assert text == expected, f"{name}: {own_refusal}"
        assert refusal in own_refusal, name
        if text is not None:
            rendered.append(name)
    return rendered


WAYS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": False, "continue_final_message": True},
]
WAY_NAMES = ["to_be_answered", "as_it_stands", "to_be_continued"]


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
@pytest.mark.parametrize("model", WITH_OWN_TEMPLATE)
def test_a_models_own_template_renders_as_in_transformers(model: str, way: dict[str, bool]) -> None:
    template = own_template(model)
    assert template is not None
    assert len(compare(template, model, None, **way)) >= 5


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_template_renders_as_in_transformers(model: str, way: dict[str, bool]) -> None:
    source = template_sources()[PUBLISHED[model]]
    mine = ChatTemplate.from_files(files(model), override=source)
    assert mine is not None
    assert len(compare(mine, model, source, **way)) >= 4


@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_about_a_hundred_templates_render_as_in_transformers(way: dict[str, bool]) -> None:
    sources = template_sources()
    assert len(sources) > 90
    never = []
    for name, source in sources.items():
        mine = ChatTemplate.from_files(files("llama2"), override=source)
        assert mine is not None
        if not compare(mine, "llama2", source, **way):
            never.append(name)
    assert len(never) < len(sources) // 10, never


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_encoded_conversation_has_one_bos_at_most_and_equals_transformers(model: str) -> None:
    source = template_sources()[PUBLISHED[model]]
    mine = ChatTemplate.from_files(files(model), override=source)
    assert mine is not None
    messages = CONVERSATIONS["user"]["messages"]
    ids = ours(model).encode(mine.render(messages), add_special_tokens=False)
    assert ids == theirs(model).apply_chat_template(
        messages, chat_template=source, add_generation_prompt=True, return_dict=False
    )
    bos = theirs(model).bos_token_id
    assert ids.count(bos) <= 1 and bos not in ids[1:]


@pytest.mark.parametrize(
    ("model", "words"), [("gemma3", "Conversation roles must alternate"), ("llama2", "alternate")]
)
def test_a_real_template_refuses_in_its_own_words(model: str, words: str) -> None:
    mine = ChatTemplate.from_files(files(model), override=template_sources()[PUBLISHED[model]])
    assert mine is not None
    with pytest.raises(TemplateError, match=words):
        mine.render(CONVERSATIONS["wrong_order"]["messages"])
