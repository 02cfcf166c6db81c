"""Chat templates against transformers' apply_chat_template, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers
from jinja2.exceptions import TemplateError as JinjaError
from small_tokenizers import files_of, write_files
from transformers import AutoTokenizer

from headrace.errors import HeadraceError
from headrace.text import chat_template
from headrace.text.chat_template import ChatTemplate, TemplateError
from headrace.text.tokenizer import Tokenizer

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- set ns = namespace(calls=0) %}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- set ns.calls = ns.calls + message.tool_calls | length %}
        {{- message.tool_calls[0].function | tojson }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if tools is not none %}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n' }}{%- endfor %}
{%- endif %}
{{- ns.calls }} {{ date_string }} {{ unk_token is defined }}
"""

ROLE_ORDER = """\
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if loop.index0 > 2 %}{% break %}{% endif %}
[{{ message['role'] }}] {% generation %}{{ message.content }}{% endgeneration %} {{ message.reasoning_content }}|{{ message.thinking }}

{% endfor %}
"""

DOCUMENTS = (
    "{% for d in documents or [] %}{{ d.title }}: {{ d.text }}\n{% endfor %}{{ dict(a=1)['a'] }}{{ mood }}"
)

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one_turn": {"messages": [{"role": "user", "content": 'Hi <b>& "you"</b> é😀'}]},
    "system_and_more": {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Bye\n"},
        ]
    },
    "alternating": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello", "reasoning": "greet", "name": None},
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "3"},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Rain?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "rain", "arguments": {"city": "Zürich"}}}],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "rain", "description": "Is it <wet>?"}}],
    },
    "documents_and_more": {
        "messages": [{"role": "user", "content": "x"}],
        "documents": [{"title": "T", "text": "long"}],
        "mood": "calm",
        "date_string": "1 Jan 2026",
    },
}

CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
    "eos_token": "<|im_end|>",
    "added_tokens_decoder": {},
}
BACKEND = small_tokenizers.byte_level()
NAMED = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": LLAMA3}]

FOLDERS: dict[str, dict[str, bytes]] = {
    "chatml": files_of(BACKEND, {**CONFIG, "chat_template": CHATML}),
    "llama3": files_of(BACKEND, {**CONFIG, "chat_template": LLAMA3}),
    "role_order": files_of(BACKEND, {**CONFIG, "chat_template": ROLE_ORDER}),
    "documents": files_of(BACKEND, {**CONFIG, "chat_template": DOCUMENTS}),
    "named_list": files_of(BACKEND, {**CONFIG, "chat_template": NAMED}),
    "own_file_before_the_config": {
        **files_of(BACKEND, {**CONFIG, "chat_template": DOCUMENTS}, chat_template={"chat_template": "no"}),
        "chat_template.jinja": CHATML.encode(),
    },
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name → transformers' tokenizer of that folder."""
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in loaded:
            folder: Path = write_files(FOLDERS[name], tmp_path_factory.mktemp(name))
            loaded[name] = AutoTokenizer.from_pretrained(folder)
        return loaded[name]

    return load


def load(files: dict[str, bytes], override: str | None = None) -> ChatTemplate:
    template = ChatTemplate.from_files(files, override=override)
    assert template is not None
    return template


def text_or_refusal(render: Callable[[], str]) -> tuple[str | None, str]:
    try:
        return render(), ""
    except (TemplateError, TypeError, JinjaError) as error:
        return None, str(error)


def only(template: str) -> ChatTemplate:
    return load({}, override=template)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_prompt_equals_transformers(
    name: str, conversation: str, add_generation_prompt: bool, reference: Any
) -> None:
    arguments = dict(CONVERSATIONS[conversation])
    messages = arguments.pop("messages")
    arguments["add_generation_prompt"] = add_generation_prompt
    expected, their_refusal = text_or_refusal(
        lambda: reference(name).apply_chat_template(messages, tokenize=False, **arguments)
    )
    text, our_refusal = text_or_refusal(lambda: load(FOLDERS[name]).render(messages, **arguments))
    assert text == expected
    assert their_refusal in our_refusal


def test_the_encoded_prompt_equals_transformers_with_one_bos(reference: Any) -> None:
    messages = CONVERSATIONS["system_and_more"]["messages"]
    tokenizer = Tokenizer.from_files(FOLDERS["llama3"])
    ids = tokenizer.encode(load(FOLDERS["llama3"]).render(messages), add_special_tokens=False)
    assert ids == reference("llama3").apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert ids.count(tokenizer.encode("<|endoftext|>")[0]) == 1


def test_a_refusal_has_the_templates_own_words() -> None:
    template = load(FOLDERS["role_order"])
    with pytest.raises(TemplateError) as refused:
        template.render([{"role": "assistant", "content": "Hi"}])
    assert str(refused.value) == "Conversation roles must alternate user/assistant/user/assistant/..."


def test_a_template_that_fails_on_the_messages_says_how() -> None:
    template = only("{{ 'x' + messages[0].content }}")
    with pytest.raises(TemplateError, match=r"TypeError: can only concatenate str .*fields and types"):
        template.render([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])


def test_a_field_of_nothing_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="UndefinedError"):
        only("{{ messages[0].none.such }}").render([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__init__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ dict.update(messages[0], role='x') }}",
        "{{ dict.__class__ }}{{ dict.mro() }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(attack: str) -> None:
    with pytest.raises(TemplateError):
        only(attack).render([{"role": "user", "content": "Hi"}])


def test_the_callers_messages_are_not_changed() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi", "reasoning": "r", "tool_calls": []}]
    before = json.dumps(messages)
    only(CHATML).render(messages)
    assert json.dumps(messages) == before


def test_an_empty_list_of_tool_calls_is_as_if_absent() -> None:
    template = only("{{ messages[0].tool_calls is defined }}")
    assert template.render([{"role": "assistant", "content": "x", "tool_calls": []}]) == "False"


def test_the_override_counts_before_all_files() -> None:
    override = "{{ eos_token }}{{ messages | length }}"
    assert load(FOLDERS["own_file_before_the_config"], override).render([]) == "<|im_end|>0"


def test_the_processors_file_counts_where_there_is_no_other() -> None:
    files = files_of(BACKEND, CONFIG, chat_template={"chat_template": "{{ bos_token }}"})
    assert load(files).render([]) == "<|endoftext|>"


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate.from_files(files_of(BACKEND, CONFIG)) is None


def test_named_templates_without_a_default_are_named_when_none_fits() -> None:
    files = files_of(
        BACKEND, {"chat_template": [{"name": "rag", "template": "x"}, {"name": "a", "template": ""}]}
    )
    with pytest.raises(TemplateError, match=r"\(a, rag\)"):
        load(files).render([])


def test_a_continued_message_ends_the_prompt_at_its_last_character() -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "one, two, "}]
    text = only(CHATML).render(messages, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\none, two, ")
    assert messages[-1]["content"] == "one, two, "


def test_the_mark_of_the_end_written_by_a_user_does_not_move_the_end() -> None:
    mark = chat_template._END_OF_MESSAGE
    messages = [{"role": "user", "content": f"Say {mark}."}, {"role": "assistant", "content": "Said"}]
    text = only("{% for m in messages %}[{{ m.content }}]{% endfor %}").render(
        messages, continue_final_message=True
    )
    assert text == f"[Say {mark}.][Said"


def test_a_continued_message_of_parts_ends_at_its_last_text() -> None:
    template = only("{% for part in messages[0].content %}[{{ part.text | trim }}]{% endfor %}")
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two "}, {"type": "image"}]
    text = template.render([{"role": "assistant", "content": parts}], continue_final_message=True)
    assert text == "[one][two"


@pytest.mark.parametrize(
    "messages", [[], [{"role": "assistant"}], [{"role": "assistant", "content": [{"type": "image"}]}]]
)
def test_without_a_text_at_the_end_there_is_nothing_to_continue(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError, match="no text that the answer could continue"):
        only("{{ messages }}").render(messages, continue_final_message=True)


@pytest.mark.parametrize("source", ["nothing of it", "{{ messages[0].content | upper }}"])
def test_a_template_that_changes_the_message_cannot_continue_it(source: str) -> None:
    with pytest.raises(TemplateError, match="leaves out the final message or changes"):
        only(source).render([{"role": "assistant", "content": "so far"}], continue_final_message=True)


def test_invalid_jinja_is_told_with_file_and_line() -> None:
    files = {"chat_template.jinja": b"line one\n{% if %}"}
    with pytest.raises(TemplateError, match=r"chat_template\.jinja is not valid Jinja.*line 2"):
        load(files)


def test_an_unknown_filter_is_found_when_the_server_starts() -> None:
    with pytest.raises(TemplateError, match="No filter named 'shout'"):
        only("{{ messages[0].content | shout }}")


def test_a_template_nested_beyond_all_reason_is_refused() -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        only("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}")


@pytest.mark.parametrize("value", [7, [], [{"name": "default"}], ["text"]])
def test_a_chat_template_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(HeadraceError, match=r"chat_template in tokenizer_config\.json"):
        load(files_of(BACKEND, {"chat_template": value}))


def test_a_template_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(TemplateError, match="not UTF-8"):
        load({"chat_template.jinja": b"\xff"})
