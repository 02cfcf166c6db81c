"""What people get wrong at the command line and in the bucket: a sentence, a remedy, and nothing left behind."""

import contextlib
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import headrace
from headrace.demo.identity import Identity, new_identity
from headrace.demo.store import SeaweedStore, start_store
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.e2e import broken_models as broken
from tests.e2e.serving import Ended, free_port, run_to_its_end, serving

# What fails before the weights must fail long before this; a hang is what it tells.
SOON_S = 30.0
STRANGER = new_identity("stranger", ("Read:elsewhere", "List:elsewhere"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[SeaweedStore]:
    """A store that also knows a stranger; a whole model lies at s3://models/qwen."""
    with start_store(tmp_path_factory.mktemp("store"), identities=[STRANGER]) as running:
        put(running, tiny_folder.parent, "models")
        yield running


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `import torch` fails: what needs no torch must not wait for it."""
    folder = tmp_path_factory.mktemp("no-torch")
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    return {"PYTHONPATH": f"{folder}:{Path(headrace.__file__).parents[1]}"}


def put(store: SeaweedStore, folder: Path, bucket: str) -> None:
    """Upload a folder, whatever it holds, to a new bucket."""
    client = make_s3_client(resolve_s3_settings(store.environment()), attempts=2)
    client.create_bucket(Bucket=bucket)
    for path in folder.rglob("*"):
        if path.is_file():
            key = path.relative_to(folder).as_posix()
            client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())


def assert_sentence(ended: Ended, cause: str, remedy: str, secrets: tuple[str, ...] = ()) -> None:
    """One error: what happened, then what to do about it; both patterns are found where they belong."""
    print(ended.error)  # for `pytest -s`, to read them all
    assert ended.code in (1, 2), ended.output
    assert ended.output.count("error: ") == 1, ended.output
    assert "Traceback" not in ended.output and "torch was imported" not in ended.output, ended.output
    said, _, to_do = ended.error.removeprefix("error: ").partition("\n")
    assert re.search(cause, said), ended.error
    assert said.endswith((".", "?", ")", "…")), said
    assert re.search(remedy, to_do), ended.error
    for secret in secrets:
        assert secret not in ended.output


# ---- the store


@pytest.mark.parametrize(
    ("uri", "cause", "remedy"),
    [
        ("s3://no-such-bucket/qwen", r"s3://no-such-bucket.*no bucket no-such-bucket.*NoSuchBucket", "AWS_ENDPOINT_URL"),
        ("s3://models/no-such-prefix", r"s3://models/no-such-prefix.*(Nothing|no object|no config)", "push|prefix|folder|upload"),
        ("s3://models", r"There is: qwen/", "folder"),
        ("ftp://models/qwen", "not a scheme", "s3://"),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere(
    uri: str, cause: str, remedy: str, store: SeaweedStore, no_torch: dict[str, str]
) -> None:
    environ = {**store.environment(), **no_torch}
    ended = run_to_its_end("--model-path", uri, environ=environ, timeout_s=SOON_S)
    assert_sentence(ended, cause, remedy, (store.secret_key,))


@pytest.mark.parametrize(
    ("who", "cause", "remedy"),
    [
        (STRANGER, r"HR\w\w…\w{4} may not do this.*HTTP 403, AccessDenied", "s3:ListBucket .* s3:GetObject"),
        (Identity("x", STRANGER.access_key, "wrong-secret", ()), "secret key is wrong.*403", "AWS_SECRET_ACCESS_KEY"),
        (Identity("x", "UNKNOWNKEY0123", "wrong-secret", ()), "does not know the access key UNKN….*403", "AWS_ACCESS_KEY_ID"),
    ],
    ids=["access-denied", "wrong-secret", "unknown-key"],
)  # fmt: skip
def test_someone_who_may_not(
    who: Identity, cause: str, remedy: str, store: SeaweedStore, no_torch: dict[str, str]
) -> None:
    environ = {**store.environment(who), **no_torch}
    ended = run_to_its_end("--model-path", "s3://models/qwen", environ=environ, timeout_s=SOON_S)
    assert_sentence(ended, cause, remedy, (who.secret_key, who.access_key, store.secret_key))


@pytest.mark.parametrize(
    ("changed", "cause", "remedy"),
    [
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "AWS_ENDPOINT_URL has no scheme", "http://HOST:PORT"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/models"}, "without a path", "bucket belongs in the s3:// URI"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "No AWS credentials were found", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY is not set", "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ENDPOINT_URL": "http://user:pass-word@127.0.0.1:9000"}, "user name or password", "keys have settings of their own"),
        ({"AWS_PROFILE": "no-such-profile", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no-such-profile", "AWS_PROFILE"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_settings_that_cannot_be(
    changed: dict[str, str], cause: str, remedy: str, store: SeaweedStore, no_torch: dict[str, str]
) -> None:
    environ = {**store.environment(), **no_torch, **changed}
    ended = run_to_its_end("--model-path", "s3://models/qwen", environ=environ, timeout_s=SOON_S)
    assert_sentence(ended, cause, remedy, (store.secret_key, "pass-word"))


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port where connections are neither taken nor refused: its queue is full."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            caller = open_sockets.enter_context(socket.socket())
            caller.settimeout(0.2)
            try:
                caller.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]


# A store that is away may come back: without this it would be asked again.
TRY_ONCE = ("--model-path", "s3://models/qwen", "--engine-restarts", "0")


def test_a_store_that_refuses_connections(store: SeaweedStore, no_torch: dict[str, str]) -> None:
    port = free_port()
    environ = {**store.environment(), **no_torch, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    ended = run_to_its_end(*TRY_ONCE, environ=environ, timeout_s=SOON_S)
    assert_sentence(ended, f"127.0.0.1:{port}.*refused", "AWS_ENDPOINT_URL")


def test_a_store_that_never_answers_a_connection(store: SeaweedStore, no_torch: dict[str, str]) -> None:
    with deaf_port() as port:
        environ = {**store.environment(), **no_torch, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        ended = run_to_its_end(*TRY_ONCE, environ=environ, timeout_s=SOON_S)
        assert_sentence(ended, f"127.0.0.1:{port}.*(timed out|no answer|within)", "AWS_ENDPOINT_URL")


# ---- the model's files


V_PROJ, GATE_PROJ = "model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.gate_proj.weight"


def mis_shaped(tensors: dict[str, torch.Tensor]) -> None:
    tensors[V_PROJ] = tensors[V_PROJ][:-1].clone()


def missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[GATE_PROJ]


def unexpected(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.adapter.weight"] = torch.zeros(4, 4)


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[V_PROJ] = tensors[V_PROJ].to(torch.int32)


HUGE_HEADER = b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"
GARBAGE_HEADER = (64).to_bytes(8, "little") + bytes(range(100, 164)) * 2
FILES: dict[str, tuple[broken.Break, str, str]] = {
    "no-safetensors": (broken.without_weights, r"holds no \.safetensors.*pytorch_model\.bin", "Pickled weights"),
    "no-config": (broken.without("config.json"), r"holds no config\.json.*There is: .*generation_config\.json", "folder|upload"),
    "unsupported-architecture": (broken.with_config(architectures=["MambaForCausalLM"]), "MambaForCausalLM", "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"),
    "index-names-a-missing-shard": (broken.without(broken.SHARD), f"names 1 of 3 shards.*{broken.SHARD}", "shards"),
    "index-names-a-missing-tensor": (broken.index_with_a_tensor_too_many, r"model\.extra\.weight \(in model-00002", "index"),
    "no-index-and-a-shard-missing": (broken.without(broken.INDEX, broken.SHARD), "2 of 3 shards; missing: 00002", "shards"),
    "missing-tensor": (broken.with_tensors(missing), f"Missing: {GATE_PROJ}", "one and the same checkpoint"),
    "unexpected-tensor": (broken.with_tensors(unexpected), r"Unexpected: model\.layers\.0\.adapter\.weight", "one and the same checkpoint"),
    "mis-shaped-tensor": (broken.with_tensors(mis_shaped), r"v_proj\.weight \[31, 64\] \(config\.json: \[32, 64\]\)", "one and the same checkpoint"),
    "tensor-of-whole-numbers": (broken.with_tensors(whole_numbers), f"{V_PROJ}.*I32", ""),
    "truncated-shard": (broken.cut_off, f"{broken.SHARD}.*is cut off", "upload it again"),
    "huge-header": (broken.with_content(broken.SHARD, HUGE_HEADER), r"claims 9,223,372,036,854,775,807 bytes", "upload it again"),
    "garbage-header": (broken.with_content(broken.SHARD, GARBAGE_HEADER), "not valid JSON", "upload it again"),
    "empty-config": (broken.with_content("config.json", b""), r"config\.json is not valid JSON", "again"),
    "config-without-a-field": (broken.with_content("config.json", b"{}"), "architecture", "Supported: "),
    "config-is-a-list": (broken.with_content("config.json", b"[1]"), r"config\.json is not a JSON object", "again"),
    "config-with-text-for-a-number": (broken.with_config(hidden_size="64"), "hidden_size", "config"),
    "config-with-a-negative-size": (broken.with_config(num_hidden_layers=-3), "num_hidden_layers", "config"),
    "config-that-asks-for-the-impossible": (broken.with_config(vocab_size=10**15), "embed_tokens|vocab_size", "checkpoint|config"),
    "broken-generation-config": (broken.with_content("generation_config.json", b"{"), r"generation_config\.json is not valid JSON", "again"),
}  # fmt: skip


TOKENIZERS: dict[str, tuple[broken.Break, str, str]] = {
    "no-tokenizer": (broken.without("tokenizer.json"), r"tokenizer\.json", "tokenizer"),
    "broken-tokenizer": (broken.with_content("tokenizer.json", b'{"version": "1.0", "model": '), r"tokenizer\.json", "again"),
    "broken-tokenizer-config": (broken.with_content("tokenizer_config.json", b"nonsense"), r"tokenizer_config\.json", "again"),
}  # fmt: skip


@pytest.fixture(scope="module")
def broken_models(store: SeaweedStore, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """All of these in one bucket, each under its name: the bucket's URI."""
    folder = tmp_path_factory.mktemp("broken")
    for name, (break_it, _, _) in {**FILES, **TOKENIZERS}.items():
        shutil.copytree(tiny_folder, folder / name)
        break_it(folder / name)
    put(store, folder, "broken")
    return "s3://broken"


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_model(
    name: str, broken_models: str, store: SeaweedStore, no_torch: dict[str, str]
) -> None:
    _, cause, remedy = FILES[name]
    command = ["--model-path", f"{broken_models}/{name}", "--device", "cpu"]
    ended = run_to_its_end(*command, environ={**store.environment(), **no_torch}, timeout_s=SOON_S)
    assert_sentence(ended, cause, remedy, (store.secret_key,))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_cannot_be_built(name: str, broken_models: str, store: SeaweedStore) -> None:
    _, cause, remedy = TOKENIZERS[name]
    command = ["--model-path", f"{broken_models}/{name}", "--device", "cpu"]
    ended = run_to_its_end(*command, environ=store.environment())
    assert_sentence(ended, cause, remedy, (store.secret_key,))


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (["--sevred-model-name", "x"], "--sevred-model-name .*did you mean --served-model-name", "--help"),
        (["--model-loader-extra-config", '{"concurency": 8}'], "concurency", "concurrency"),
        (["--model-loader-extra-config", '{"concurrency": "8"}'], "concurrency", ""),
        (["--mem-fraction-static", "1.5"], "--mem-fraction-static.*1.5", "--help"),
        (["--context-length", "40000"], "--context-length 40000 .*32768", "32768 or less"),
        (["--tokenizer-path", "s3://models/nothing"], "s3://models/nothing", ""),
        (["--chat-template", "/no/such/file"], "/no/such/file", "--chat-template"),
        (["--host", "192.0.2.1"], "192.0.2.1", "check --host"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else "",
)
def test_flags_that_cannot_be_met(
    arguments: list[str], cause: str, remedy: str, store: SeaweedStore, no_torch: dict[str, str]
) -> None:
    environ = {**store.environment(), **no_torch}
    command = ["--model-path", "s3://models/qwen", "--device", "cpu", *arguments]
    ended = run_to_its_end(*command, environ=environ, timeout_s=SOON_S)
    assert_sentence(ended, cause, remedy, (store.secret_key,))


def test_a_port_that_is_taken(store: SeaweedStore, no_torch: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environ = {**store.environment(), **no_torch}
        ended = run_to_its_end("--model-path", "s3://models/qwen", "--port", str(port), environ=environ)
        assert_sentence(ended, f"127.0.0.1:{port}.*in use", "--port")


def test_too_little_memory_names_the_smallest_share_that_works(
    smollm2_uri: str, seaweed: SeaweedStore, no_torch: dict[str, str]
) -> None:
    command = ["--model-path", smollm2_uri, "--device", "cpu", "--mem-fraction-static"]
    environ = seaweed.environment()
    ended = run_to_its_end(*command, "0.004", environ={**environ, **no_torch}, timeout_s=SOON_S)
    begin = r"^Loaded weights leave no memory for the KV cache under --mem-fraction-static=0\.004\."
    assert_sentence(
        ended,
        begin + r" The CPU has .* in total.*weights take 0\.25 GiB.*bytes per token",
        "Raise --mem-fraction-static",
    )
    match = re.search(r"Raise --mem-fraction-static to (0\.\d+) or more", ended.error)
    assert match is not None
    smallest = float(match.group(1))
    below = f"{smallest - 0.001:.3f}"
    ended = run_to_its_end(*command, below, environ={**environ, **no_torch}, timeout_s=SOON_S)
    assert_sentence(ended, "leave no memory for the KV cache", f"to {smallest:g} or more")
    with serving(*command, f"{smallest:g}", environ=environ) as server:
        assert "Paris" in server.complete("The capital of France is", max_tokens=8)
