"""What a bad request gets: the right status, OpenAI's nested shape, and a sentence that names the fault."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from byte_model import CONTEXT_LENGTH, VOCAB_SIZE
from front_harness import OPTIONS, Front, running_front

from headrace.ipc.messages import Generate, TokenOutput

LIMIT = 20_000


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front(options=msgspec.structs.replace(OPTIONS, max_body_bytes=LIMIT)) as running:
        yield running


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error: dict[str, Any] = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


def post(front: Front, content: bytes, **headers: str) -> httpx.Response:
    return front.http.post(
        "/v1/completions", content=content, headers={"Content-Type": "application/json", **headers}
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"prompt": "a",}', b"\xff\xfe", b'"\\ud800"', b"[" * 10_000]
)
def test_what_is_not_json_is_a_400(front: Front, content: bytes) -> None:
    assert error_of(post(front, content), 400)["code"] == "invalid_json"


@pytest.mark.parametrize("content", [b"[]", b'"text"', b"null", b"1", b"true"])
def test_json_that_is_no_object_is_a_400(front: Front, content: bytes) -> None:
    assert "must be a JSON object" in error_of(post(front, content), 400)["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": 1}, "prompt"),
        ({"prompt": [[1, "x"]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [VOCAB_SIZE]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "temperature": -0.1}, "temperature"),
        ({"prompt": "a", "temperature": True}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_p": 1.1}, "top_p"),
        ({"prompt": "a", "top_k": 0}, "top_k"),
        ({"prompt": "a", "seed": 2**63}, "seed"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "stop": ["x"] * 33}, "stop"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "min_p": 1.5}, "min_p"),
        ({"prompt": "a", "min_p": -0.1}, "min_p"),
        ({"prompt": "a", "min_tokens": -1}, "min_tokens"),
        ({"prompt": "a", "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens"),
        ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
        ({"prompt": "a", "repetition_penalty": 2.1}, "repetition_penalty"),
        ({"prompt": "a", "presence_penalty": 2.1}, "presence_penalty"),
        ({"prompt": "a", "frequency_penalty": -2.1}, "frequency_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"5": "1"}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [5]}, "logit_bias"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 129}, "n"),
        ({"prompt": "a", "n": True}, "n"),
        ({"prompt": "a", "best_of": 0}, "best_of"),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["a"] * 100, "n": 11}, "n"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "echo": "yes"}, "echo"),
        ({"prompt": "a", "echo": True, "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "priority": 1}, "priority"),
        ({"prompt": "a", "priority": "high"}, "priority"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(
    front: Front, body: dict[str, object], param: str
) -> None:
    error = error_of(front.http.post("/v1/completions", json=body), 400)
    assert error["param"] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_missing_prompt_is_named(front: Front) -> None:
    assert error_of(front.http.post("/v1/completions", json={"model": "tiny"}), 400)["param"] == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        {"suffix": "tail"},
        {"prompt_logprobs": 1},
        {"regex": "a+"},
        {"json_schema": "{}"},
        {"response_format": {"type": "json_schema"}},
    ],
)
def test_a_known_field_that_is_not_honoured_yet_is_refused_by_name(
    front: Front, body: dict[str, object]
) -> None:
    error = error_of(front.complete(**body), 400)
    assert error["param"] == next(iter(body))
    assert "not supported yet" in error["message"]


def test_off_values_and_unknown_fields_do_no_harm(front: Front) -> None:
    off = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": "", "logit_bias": {}, "min_p": 0}
    assert front.complete(**off, repetition_penalty=1.0, user="me", my_own_field=[1]).status_code == 200


def test_a_prompt_over_the_context_is_refused_with_true_numbers(front: Front) -> None:
    error = error_of(front.complete(prompt="a" * CONTEXT_LENGTH), 400)
    assert error["code"] == "context_length_exceeded"
    assert f"{CONTEXT_LENGTH} tokens" in error["message"]


def test_an_answer_that_cannot_fit_is_refused_with_the_number_that_would(front: Front) -> None:
    error = error_of(front.complete(prompt="a" * 2000, max_tokens=100), 400)
    assert error["code"] == "context_length_exceeded"
    assert "2100 tokens" in error["message"]
    assert f"to {CONTEXT_LENGTH - 2000}." in error["message"]


def test_an_unknown_model_is_a_404_that_names_the_served_one(front: Front) -> None:
    error = error_of(front.complete(model="gpt-4"), 404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"]
    assert error_of(front.http.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"


def test_unknown_routes_and_methods_answer_in_the_same_shape(front: Front) -> None:
    assert error_of(front.http.get("/v2/everything"), 404)["code"] == "not_found"
    response = front.http.get("/v1/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def test_another_content_type_is_a_415(front: Front) -> None:
    response = front.http.post("/v1/completions", data={"prompt": "a"})
    assert "application/x-www-form-urlencoded" in error_of(response, 415)["message"]


def test_a_body_at_the_limit_is_read(front: Front) -> None:
    body = b'{"prompt": "a"}'
    assert post(front, body + b" " * (LIMIT - len(body))).status_code == 200


def test_a_declared_body_over_the_limit_is_a_413(front: Front) -> None:
    assert str(LIMIT) in error_of(post(front, b" " * (LIMIT + 1)), 413)["message"]


def test_a_body_of_undeclared_length_is_counted_while_it_is_read(front: Front) -> None:
    pieces = (b" " * 1000 for _ in range(LIMIT // 1000 + 1))
    response = front.http.post(
        "/v1/completions", content=pieces, headers={"Content-Type": "application/json"}
    )
    assert error_of(response, 413)["code"] == "request_too_large"


def test_a_client_that_asks_before_it_sends_too_much_need_not_send(front: Front) -> None:
    host, _, port = front.url.removeprefix("http://").partition(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_while_it_sends_does_not_disturb_the_next(front: Front) -> None:
    host, _, port = front.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert front.complete().status_code == 200


def test_a_defect_is_a_500_and_the_next_request_is_answered(front: Front) -> None:
    def without_logprobs(generate: Generate) -> Iterator[TokenOutput]:
        yield TokenOutput(generate.rid, (65,), "length")

    script, front.engine.script = front.engine.script, without_logprobs
    response = front.complete(logprobs=1)
    assert error_of(response, 500)["code"] == "internal_error"
    assert response.headers["connection"] == "close"
    front.engine.script = script
    assert front.complete().status_code == 200


@pytest.mark.parametrize("head", [b"NONSENSE\r\n\r\n", b"GET /health HTTP/1.1\r\nBad Name: x\r\n\r\n"])
def test_what_is_not_http_is_a_400_in_the_same_shape(front: Front, head: bytes) -> None:
    host, _, port = front.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head)
        response = connection.makefile("rb").read()
    assert response.startswith(b"HTTP/1.1 400 ")
    assert msgspec.json.decode(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
