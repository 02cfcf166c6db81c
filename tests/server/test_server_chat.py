"""POST /v1/chat/completions: the template, the shape of answers and of streams."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from byte_model import CONTEXT_LENGTH, model_info, text_of
from front_harness import Front, running_front
from scripted_engine import say

from headrace.ipc.messages import Generate


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say("Hello, world.")
    front.engine.received.clear()


def prompt_seen(front: Front) -> str:
    return text_of(front.engine.wait_for(Generate).input_ids)


def chunks_of(front: Front, **body: object) -> list[Any]:
    data = [
        line.removeprefix("data: ") for line in front.chat(stream=True, **body).text.split("\n\n") if line
    ]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def test_the_answer_is_the_assistants_message(front: Front) -> None:
    answer = front.chat().json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello, world."}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len("Hello, world.") + 1


def test_the_models_template_makes_the_prompt(front: Front) -> None:
    front.chat(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert prompt_seen(front) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_answer_may_take_the_rest_of_the_context(front: Front) -> None:
    front.chat()
    generate = front.engine.wait_for(Generate)
    assert len(generate.input_ids) + generate.sampling.max_tokens == CONTEXT_LENGTH


def test_the_newer_name_of_the_limit_wins(front: Front) -> None:
    front.chat(max_tokens=7, max_completion_tokens=3)
    assert front.engine.wait_for(Generate).sampling.max_tokens == 3


def test_text_parts_are_joined_by_a_line_break(front: Front) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    front.chat(messages=[{"role": "user", "content": parts}])
    assert "user\none\ntwo<|im_end|>" in prompt_seen(front)


def test_template_kwargs_reach_the_template(front: Front) -> None:
    front.chat(chat_template_kwargs={"mood": "kind"})
    assert prompt_seen(front).endswith("assistant\n(kind)")


def test_the_generation_prompt_can_be_left_out(front: Front) -> None:
    front.chat(add_generation_prompt=False)
    assert prompt_seen(front).endswith("Hi<|im_end|>\n")


def test_an_assistants_message_at_the_end_can_be_continued(front: Front) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, my"}]
    front.chat(messages=messages, continue_final_message=True)
    assert prompt_seen(front).endswith("<|im_start|>assistant\nHello, my")


def test_a_message_that_the_template_changes_cannot_be_continued() -> None:
    shouting = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, my"}]
    with running_front(info=model_info(template=shouting)) as front:
        response = front.chat(messages=messages, continue_final_message=True)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "template_error"


def test_empty_lists_of_tools_and_calls_are_none_to_the_template() -> None:
    asking = "{{ tools is none }} {% for m in messages %}{{ m.tool_calls is defined }}{% endfor %}"
    messages = [{"role": "assistant", "content": "Hi", "tool_calls": []}]
    with running_front(info=model_info(template=asking)) as front:
        front.chat(tools=[], messages=messages)
        assert prompt_seen(front) == "True False"


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(front: Front) -> None:
    choices = [chunk["choices"][0] for chunk in chunks_of(front)]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello, world."
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_a_streams_usage_comes_last_and_alone(front: Front) -> None:
    chunks = chunks_of(front, stream_options={"include_usage": True}, max_tokens=2)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2


def test_text_held_back_for_a_stop_string_comes_when_the_answer_ends_without_it(front: Front) -> None:
    choices = [chunk["choices"][0] for chunk in chunks_of(front, stop="world.!")]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello, world."


def test_the_templates_own_refusal_is_the_clients_error(front: Front) -> None:
    response = front.chat(messages=[{"role": "wizard", "content": "Hi"}])
    assert response.status_code == 400
    assert "Unknown role wizard" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "tool", "content": "4", "tool_call_id": "c"}]}, "messages[0].tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"priority": 1}, "priority"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_honoured_is_named(front: Front, body: dict[str, object], param: str) -> None:
    response = front.chat(**body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_off_values_of_what_is_not_supported_yet_are_accepted(front: Front) -> None:
    response = front.chat(
        tools=[],
        tool_choice="none",
        logprobs=False,
        n=1,
        response_format={"type": "text"},
        presence_penalty=0.0,
    )
    assert response.status_code == 200


def test_a_model_without_a_template_answers_completions_and_refuses_chat() -> None:
    with running_front(info=model_info(template=None)) as front:
        assert front.complete().status_code == 200
        response = front.chat()
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "no_chat_template"
        assert "--chat-template" in response.json()["error"]["message"]


def test_the_models_own_sampling_values_hold_where_a_request_gives_none() -> None:
    defaults: dict[str, object] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True}
    with running_front(info=model_info(generation_config=defaults)) as front:
        front.chat(top_p=0.5)
        sampling = front.engine.wait_for(Generate).sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 20)
