"""Answers as transformers' tokens and logits can be held against them."""

import json
import re
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.e2e.serving import DEADLINE_S, Server, until
from tests.models.harness import theirs_logits

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Body = dict[str, Any]

_T = TypeVar("_T")
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes of a byte-level token; of a special token, those of its name."""
    word = tokenizer.id_to_token(token_id)
    assert word is not None, token_id
    if token_id in tokenizer.get_added_tokens_decoder():
        return word.encode()
    return bytes(_BYTES[character] for character in word)


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """How OpenAI's completions name a token: its text, or its bytes where they are no text of their own."""
    content = token_bytes(tokenizer, token_id)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def ids_of(tokenizer: Tokenizer, names: Sequence[str]) -> list[int]:
    """The token ids behind such names; no two tokens share one in the vocabularies of these tests."""
    known = {token_name(tokenizer, token_id): token_id for token_id in range(tokenizer.get_vocab_size())}
    return [known[name] for name in names]


def reference_logprobs(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """float64 [len(ids), vocab]: transformers' log-softmax over what follows each token."""
    return theirs_logits(model, ids).double().log_softmax(-1)


def answer(server: Server, path: str, body: Body) -> Body:
    """The whole answer. AssertionError if the server refuses."""
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    content: Body = response.json()
    return content


def choice(server: Server, **body: Any) -> Body:
    """The only choice of a greedy completion, unless a temperature is given."""
    (only,) = answer(server, COMPLETIONS, {"temperature": 0, **body})["choices"]
    found: Body = only
    return found


def chunks(server: Server, path: str, body: Body) -> Generator[Body, None, None]:
    """The chunks of a streamed answer, to the [DONE] that must end it; closing it is leaving."""
    last = ""
    with httpx.stream(
        "POST", server.url + path, json={**body, "stream": True}, timeout=DEADLINE_S, trust_env=False
    ) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    yield json.loads(last)
    assert last == "[DONE]"


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """All calls at once, each in a thread of its own; what they gave, in their order."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [call.result() for call in [threads.submit(call) for call in calls]]


def requests_now(server: Server) -> int:
    """How many requests the engine has, running or waiting, as the refusal of a flush tells; 0 empties its cache."""
    response = server.post("/flush_cache", {})
    if response.status_code == 200:
        return 0
    found = re.search(r"\((\d+) now\)", response.json()["error"]["message"])
    assert found is not None, response.text
    return int(found.group(1))


def flush(server: Server) -> None:
    """Empty the prefix cache, as soon as nothing runs."""
    until(lambda: requests_now(server) == 0, "an engine without requests")
