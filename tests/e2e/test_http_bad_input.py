"""What clients get wrong: the right status, OpenAI's error shape, the field at fault, and a server that goes on."""

import json
from collections.abc import Iterator

import httpx
import pytest

from headrace.demo.store import SeaweedStore
from tests.e2e.serving import DEADLINE_S, Server, serving
from tests.tiny_models import VOCAB_SIZE

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CONTEXT_LENGTH = 256
LIMIT_BYTES = 256 << 10


@pytest.fixture(scope="module")
def server(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """A server whose pool is as large as one request may be: a leaked page would be missed."""
    flags = ["--served-model-name", "tiny", "--context-length", str(CONTEXT_LENGTH)]
    flags += ["--max-total-tokens", str(CONTEXT_LENGTH), "--max-body-size", str(LIMIT_BYTES)]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


@pytest.fixture(autouse=True)
def _the_server_goes_on(server: Server) -> Iterator[None]:
    """After each test the whole pool can be had, and a request that takes all of it is answered."""
    yield
    answer = server.post(
        COMPLETIONS,
        {"prompt": [5] * (CONTEXT_LENGTH - 2), "max_tokens": 2, "temperature": 0, "ignore_eos": True},
    )
    assert answer.status_code == 200, answer.text
    assert server.get("/health_generate").status_code == 200


def send(server: Server, content: bytes, path: str = COMPLETIONS) -> httpx.Response:
    """These very bytes as a JSON body."""
    headers = {"Content-Type": "application/json"}
    return httpx.post(
        server.url + path, content=content, headers=headers, timeout=DEADLINE_S, trust_env=False
    )


def assert_refused(answer: httpx.Response, said: str, *, status: int = 400, param: str | None = None) -> None:
    """An error in OpenAI's nested shape, about this field."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]
    assert error["param"] == param


def test_an_unknown_model_is_a_404_that_names_the_served_one(server: Server) -> None:
    for path, prompt in (
        (COMPLETIONS, {"prompt": "x"}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = server.post(path, {"model": "gpt-4", **prompt})
        assert_refused(answer, "tiny", status=404, param="model")
        assert "gpt-4" in answer.text


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(server: Server) -> None:
    answer = server.post(COMPLETIONS, {"prompt": [5] * 300, "max_tokens": 1})
    assert_refused(answer, "300 tokens", param="prompt")
    assert str(CONTEXT_LENGTH) in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_conversation_longer_than_the_context_is_refused(server: Server) -> None:
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "word " * 300}]})
    assert_refused(answer, f"context length is {CONTEXT_LENGTH} tokens", param="messages")


@pytest.mark.parametrize("huge", [CONTEXT_LENGTH, 10**9, 10**30])
def test_more_answer_than_the_context_has_room_for_is_refused(huge: int, server: Server) -> None:
    answer = server.post(COMPLETIONS, {"prompt": [5], "max_tokens": huge})
    assert_refused(answer, "max_tokens", param="max_tokens")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"prompt": "x"',
        b"\xff\xfe{}",
        b'{"prompt": "\xc3\x28"}',
        b"{'prompt': 'x'}",
        b'{"prompt": "x"}}',
    ],
)
def test_a_body_that_is_no_json_is_a_400(content: bytes, server: Server) -> None:
    assert_refused(send(server, content), "JSON")


@pytest.mark.parametrize("content", [b"[]", b'"prompt"', b"3", b"null"])
def test_a_body_that_is_no_object_is_a_400(content: bytes, server: Server) -> None:
    assert_refused(send(server, content), "must be a JSON object")


@pytest.mark.parametrize(
    "content", [b"[" * 10_000 + b"]" * 10_000, b'{"prompt":' * 10_000 + b"1" + b"}" * 10_000]
)
def test_ten_thousand_levels_of_nesting_are_a_400(content: bytes, server: Server) -> None:
    assert_refused(send(server, content), "nested too deeply")


def test_a_body_over_the_limit_is_a_413_that_names_the_limit(server: Server) -> None:
    answer = send(server, json.dumps({"prompt": "x" * LIMIT_BYTES}).encode())
    assert_refused(answer, f"{LIMIT_BYTES} bytes", status=413)


def test_a_body_whose_length_is_not_told_is_held_to_the_limit_too(server: Server) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(LIMIT_BYTES >> 10):
            yield b"x" * 1024
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    answer = httpx.post(
        server.url + COMPLETIONS, content=pieces(), headers=headers, timeout=DEADLINE_S, trust_env=False
    )
    assert_refused(answer, f"{LIMIT_BYTES} bytes", status=413)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "empty"),
        ([], "empty"),
        ([""], "empty"),
        ([[]], "empty"),
        (["x", ""], "empty"),
        ([[5], []], "empty"),
    ],
)
def test_an_empty_prompt_is_refused(prompt: object, said: str, server: Server) -> None:
    assert_refused(server.post(COMPLETIONS, {"prompt": prompt}), said, param="prompt")


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**31, 2**63, 2**80])
def test_token_ids_out_of_range_are_refused(bad: int, server: Server) -> None:
    for prompt in ([5, bad], [[5], [bad]]):
        answer = server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
        assert_refused(answer, "prompt", param="prompt")


@pytest.mark.parametrize("bad", [True, 5.5, None, {}, [[5]]])
def test_token_ids_of_another_type_are_refused(bad: object, server: Server) -> None:
    for prompt in ([5, bad], [[5], [bad]]):
        answer = server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
        assert_refused(answer, "", param="prompt")


def test_texts_and_token_ids_in_one_prompt_are_refused(server: Server) -> None:
    assert_refused(server.post(COMPLETIONS, {"prompt": ["x", 5]}), "prompt", param="prompt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", [1]),
        ("top_k", 0),
        ("top_k", -2),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "16"),
        ("max_tokens", 1.5),
        ("seed", "one"),
        ("seed", 2**70),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 3),
        ("stop", [3]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", "x"),
        ("ignore_eos", "yes"),
        ("stream", "true"),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("skip_special_tokens", 0),
        ("n", 0),
        ("n", -1),
        ("n", "1"),
        ("logprobs", -1),
        ("logit_bias", {str(VOCAB_SIZE): 1}),
        ("presence_penalty", 2.5),
        ("echo", "yes"),
        ("suffix", "x"),
        ("model", 3),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(field: str, value: object, server: Server) -> None:
    answer = server.post(COMPLETIONS, {"prompt": [5], "max_tokens": 1, field: value})
    assert_refused(answer, field, param=field)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_temperature_that_is_no_number_is_a_400(number: bytes, server: Server) -> None:
    answer = send(server, b'{"prompt": [5], "max_tokens": 1, "temperature": %s}' % number)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "empty"),
        ("hello", "array"),
        (["hello"], "object"),
        ([{"content": "x"}], "role"),
        ([{"role": "user", "content": 3}], "content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "tool"),
    ],
)
def test_messages_that_are_none_are_refused(messages: object, said: str, server: Server) -> None:
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith("messages") and said in error["message"]


def test_a_missing_prompt_is_refused_by_its_name(server: Server) -> None:
    assert_refused(server.post(COMPLETIONS, {"max_tokens": 1}), "prompt", param="prompt")
    assert_refused(server.post(CHAT, {"max_tokens": 1}), "messages", param="messages")


def test_another_content_type_is_a_415(server: Server) -> None:
    answer = httpx.post(server.url + COMPLETIONS, data={"prompt": "x"}, timeout=DEADLINE_S, trust_env=False)
    assert_refused(answer, "application/json", status=415)


def test_unknown_routes_and_methods_are_answered_in_the_same_shape(server: Server) -> None:
    assert_refused(server.get("/v1/embeddings"), "/v1/embeddings", status=404)
    assert_refused(server.get(COMPLETIONS), "GET", status=405)
    assert_refused(server.get("/v1/models/other"), "tiny", status=404, param="model")


def test_prompts_that_do_not_fit_the_pool_together_are_answered_one_after_the_other(server: Server) -> None:
    body = {"prompt": [[5] * 200, [6] * 200], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answer = server.post(COMPLETIONS, body)
    assert answer.status_code == 200
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]
