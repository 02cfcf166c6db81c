"""The answers as OpenAI's own client reads them."""

import asyncio
from collections.abc import Iterator

import httpx
import msgspec
import openai
import pytest
from byte_model import EOS_ID
from front_harness import OPTIONS, Front, running_front
from scripted_engine import refuse, say

TEXT = "Grüße, 日本 😀!"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say(TEXT)


@pytest.fixture
def client(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "headrace"


def test_a_model_named_by_its_uri_is_found() -> None:
    uri = "s3://bucket/models/qwen"
    with (
        running_front(options=msgspec.structs.replace(OPTIONS, served_model_name=uri)) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert client.models.retrieve(uri).id == uri


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Say", max_tokens=100)
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(TEXT.encode()) + 1


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=1, temperature=0)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.tool_calls is None


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.usage is not None
    assert final.usage.completion_tokens == len(TEXT.encode()) + 1


def test_a_streamed_completion(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="tiny", prompt="Say", max_tokens=100, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT


def test_extensions_pass_through(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="Say", max_tokens=100, extra_body={"skip_special_tokens": False, "top_k": 5}
    )
    assert answer.choices[0].model_extra == {"matched_stop": EOS_ID}


def test_a_completions_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="Say", max_tokens=100, logprobs=2, echo=True, stop="!"
    )
    choice = answer.choices[0]
    assert choice.text == "Say" + TEXT.removesuffix("!")
    told = choice.logprobs
    assert told is not None and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert len(told.tokens) == len(choice.text.encode())
    assert told.token_logprobs[1] is not None and told.token_logprobs[1] < 0
    assert len(told.top_logprobs[1]) == 2
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert token.startswith("bytes:") or choice.text.startswith(token, offset)


def test_a_chats_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=3,
        n=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content
        said = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
        assert said.decode() == TEXT
        assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)


def test_a_streamed_chats_logprobs_are_gathered_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=1,
    ) as stream:
        final = stream.get_final_completion()
    told = final.choices[0].logprobs
    assert told is not None and told.content is not None
    assert b"".join(bytes(token.bytes or []) for token in told.content).decode() == TEXT


def test_a_streamed_completions_logprobs(client: openai.OpenAI) -> None:
    tokens: list[str] = []
    for chunk in client.completions.create(
        model="tiny", prompt="Say", max_tokens=100, logprobs=1, echo=True, stream=True
    ):
        told = chunk.choices[0].logprobs
        tokens += (told.tokens or []) if told is not None else []
    assert tokens[:3] == ["S", "a", "y"]
    assert len(tokens) == len("Say" + TEXT) + len(TEXT.encode()) - len(TEXT) + 1


def test_a_scored_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Say", max_tokens=0, logprobs=1, echo=True)
    told = answer.choices[0].logprobs
    assert told is not None and told.token_logprobs is not None
    assert told.token_logprobs[0] is None
    assert len(told.token_logprobs) == 3


def test_sampling_fields_of_the_client(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny",
        prompt="Say",
        max_tokens=100,
        n=2,
        best_of=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": 3},
        extra_body={"min_p": 0.1, "min_tokens": 1, "repetition_penalty": 1.2},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * (len(TEXT.encode()) + 1)


def test_a_full_queue_is_the_clients_rate_limit(client: openai.OpenAI, front: Front) -> None:
    front.engine.script = refuse(429, "queue_full", "The queue is full.")
    with pytest.raises(openai.RateLimitError) as limited:
        client.completions.create(model="tiny", prompt="Say")
    assert limited.value.response.headers["retry-after"] == "5"


def test_the_cache_report_is_read_by_the_client() -> None:
    options = msgspec.structs.replace(OPTIONS, enable_cache_report=True)
    with (
        running_front(say("Hi", cached_tokens=2), options=options) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
    ):
        usage = client.completions.create(model="tiny", prompt="Say").usage
        assert usage is not None and usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 2


def test_errors_arrive_as_the_clients_types_with_the_message(client: openai.OpenAI, front: Front) -> None:
    with pytest.raises(openai.BadRequestError, match="`n` must be from 1 to 128") as bad:
        client.completions.create(model="tiny", prompt="Say", n=0)
    assert bad.value.param == "n"
    with pytest.raises(openai.NotFoundError, match="'tiny'") as missing:
        client.completions.create(model="other", prompt="Say")
    assert missing.value.code == "model_not_found"
    front.engine.script = refuse(503, "queue_full", "The queue is full.")
    with pytest.raises(openai.InternalServerError, match="The queue is full"):
        client.completions.create(model="tiny", prompt="Say")


def test_an_error_in_the_middle_of_a_stream_is_raised(client: openai.OpenAI, front: Front) -> None:
    front.engine.script = refuse(500, "kv_lost", "The engine lost it.", after="He")
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="The engine lost it"):
        texts.extend(
            chunk.choices[0].text
            for chunk in client.completions.create(model="tiny", prompt="Say", stream=True, max_tokens=100)
        )


def test_a_wrong_key_is_an_authentication_error() -> None:
    with (
        running_front(options=msgspec.structs.replace(OPTIONS, api_key="right")) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_fifty_streams_at_once_keep_their_texts_apart(front: Front) -> None:
    front.engine.script = lambda generate: say(f"{len(generate.input_ids)}: {TEXT * 3}")(generate)

    async def one(client: openai.AsyncOpenAI, length: int) -> str:
        stream = await client.completions.create(
            model="tiny", prompt="x" * length, max_tokens=500, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=50)
        async with openai.AsyncOpenAI(
            base_url=f"{front.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.AsyncClient(limits=limits),
        ) as client:
            return await asyncio.gather(*(one(client, length) for length in range(1, 51)))

    assert asyncio.run(all_of_them()) == [f"{length}: {TEXT * 3}" for length in range(1, 51)]
