"""Conversations over HTTP on a Llama whose tokenizer and whose template both write the first token of a text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headrace.demo.store import SeaweedStore
from tests.e2e.conftest import Upload
from tests.e2e.reading import CHAT, COMPLETIONS, Body, answer, chunks, token_bytes
from tests.e2e.serving import Server, serving
from tests.models.harness import theirs_greedy
from tests.tiny_models import END_OF_TEXT, make_tiny, save_checkpoint, tiny_tokenizer

# As Llama 2's and Mistral's: the template writes BOS, and refuses two speeches of the same speaker.
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]
{%- elif message['role'] == 'assistant' %} {{ message['content'] }}<|im_end|>
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}
{%- endfor %}"""
USER = {"role": "user", "content": "Name a river. "}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_tiny("llama")


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint, with a tokenizer that puts BOS before every text that it encodes."""
    folder = tmp_path_factory.mktemp("llama") / "chat"
    save_checkpoint(model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, 0)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "add_bos_token": True, "chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def server(folder: Path, upload: Upload, seaweed: SeaweedStore) -> Iterator[Server]:
    uri = upload(folder, "s3://tiny/llama-chat")
    with serving(
        "--model-path", uri, "--dtype", "float32", "--device", "cpu", environ=seaweed.environment()
    ) as running:
        yield running


def ids(theirs: PreTrainedTokenizerBase, messages: list[Body], **options: Any) -> list[int]:
    """transformers' token ids of the conversation."""
    encoded: Any = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    return [int(token_id) for token_id in encoded]


def chat(server: Server, messages: list[Body], **fields: Any) -> Body:
    return answer(server, CHAT, {"messages": messages, "max_tokens": 12, "temperature": 0, **fields})


def test_a_text_gets_its_first_token_from_the_tokenizer(
    server: Server, theirs: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    expected = theirs("The mill").input_ids
    assert expected[0] == 0
    content = answer(server, COMPLETIONS, {"prompt": "The mill", "max_tokens": 8, "temperature": 0})
    assert content["usage"]["prompt_tokens"] == len(expected)
    given = answer(server, COMPLETIONS, {"prompt": expected, "max_tokens": 8, "temperature": 0})
    assert given["choices"] == content["choices"]


@pytest.mark.parametrize("turns", [1, 3])
def test_a_conversation_has_one_first_token_and_transformers_prompt(
    turns: int, server: Server, theirs: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    messages = [USER, {"role": "assistant", "content": "Rhine"}, {"role": "user", "content": "Another?"}]
    prompt = ids(theirs, messages[:turns], add_generation_prompt=True)
    assert prompt.count(0) == 1
    content = chat(server, messages[:turns], ignore_eos=True, logprobs=True)
    assert content["usage"]["prompt_tokens"] == len(prompt)
    told = [bytes(entry["bytes"]) for entry in content["choices"][0]["logprobs"]["content"]]
    assert told == [token_bytes(tiny_tokenizer(), token_id) for token_id in theirs_greedy(model, prompt, 12)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, USER], "Conversation roles must alternate user/assistant/user/assistant/..."),
        ([{"role": "assistant", "content": "Hi"}], "Conversation roles must alternate"),
        ([USER, {"role": "system", "content": "Be brief."}], "Only user and assistant roles are supported!"),
    ],
)
def test_what_the_template_refuses_is_a_400_in_its_own_words(
    stream: bool, messages: list[Body], words: str, server: Server
) -> None:
    response = server.post(CHAT, {"messages": messages, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert (error["param"], error["code"]) == ("messages", "template_error")


def test_a_final_message_is_continued_as_transformers_cuts_the_prompt(
    server: Server, theirs: PreTrainedTokenizerBase
) -> None:
    messages = [USER, {"role": "assistant", "content": "It is the"}]
    prompt = ids(theirs, messages, continue_final_message=True)
    assert str(theirs.decode(prompt)).endswith("It is the")
    content = chat(server, messages, continue_final_message=True, add_generation_prompt=False)
    assert content["usage"]["prompt_tokens"] == len(prompt)
    given = answer(server, COMPLETIONS, {"prompt": prompt, "max_tokens": 12, "temperature": 0})
    assert content["choices"][0]["message"]["content"] == given["choices"][0]["text"]
    ended = chat(server, messages)
    assert ended["usage"]["prompt_tokens"] > len(prompt)


def test_a_continued_message_streams_the_same(server: Server) -> None:
    body = {
        "messages": [USER, {"role": "assistant", "content": "It is the"}],
        "continue_final_message": True,
        "max_tokens": 12,
        "temperature": 0,
    }
    parts = [
        piece["delta"].get("content", "")
        for chunk in chunks(server, CHAT, body)
        for piece in chunk["choices"]
    ]
    assert "".join(parts) == answer(server, CHAT, body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [USER]}, "assistant's message"),
        (
            {"messages": [USER, {"role": "assistant", "content": "It"}], "add_generation_prompt": True},
            "exclude each other",
        ),
    ],
)
def test_a_message_that_cannot_be_continued_is_a_400(fields: Body, said: str, server: Server) -> None:
    response = server.post(CHAT, {**fields, "continue_final_message": True})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "continue_final_message"
