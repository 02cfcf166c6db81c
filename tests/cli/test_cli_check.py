"""`headrace check` as a person and as CI see it."""

import json
import secrets
import socket
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import resolve_s3_settings
from tests.identities import NOBODY
from tests.tiny_models import make_tiny, save_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "model"
    save_checkpoint(make_tiny("llama"), folder, shards=2)
    return folder


@pytest.fixture(scope="module")
def uri(seaweed: SeaweedStore, model: Path) -> str:
    """The model in a bucket."""
    bucket = f"check-{secrets.token_hex(4)}"
    client = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    client.create_bucket(Bucket=bucket)
    for path in model.iterdir():
        client.put_object(Bucket=bucket, Key=f"m/{path.name}", Body=path.read_bytes())
    return f"s3://{bucket}/m"


def enter(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_each_check_is_a_line_and_the_last_one_sums_up(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(model), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert any(line.split()[:2] == ["ok", "architecture"] for line in lines)
    assert any(line.split()[:2] == ["warn", "verification"] for line in lines)
    assert "`headrace push --manifest`" in said
    assert lines[-1].startswith("It can be served")
    assert "\x1b" not in said


def test_what_fails_is_said_with_a_remedy_and_exit_code_1(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(model), "--device", "cpu", "--mem-fraction-static", "0.000001"]) == 1
    said = capsys.readouterr().out
    assert "fail  memory" in said
    assert "Raise --mem-fraction-static" in said
    assert said.endswith("It cannot be served.\n")


def test_json_is_one_object(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(model), "--device", "cpu", "--json"]) == 0
    said = capsys.readouterr().out
    facts = json.loads(said)
    assert said.count("\n") == 1
    assert facts["ok"] is True
    assert {check["status"] for check in facts["checks"]} == {"ok", "warn"}


def test_a_usage_error_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert main(["check", "m", "--dtype", "int4"]) == 2


def test_the_settings_of_a_store_are_told_without_its_secret(
    uri: str, seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(monkeypatch, seaweed.environment())
    assert main(["check", uri, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert seaweed.endpoint_url in said
    assert "AWS_ENDPOINT_URL" in said
    assert "ok    cache" in said
    assert seaweed.secret_key not in said
    assert seaweed.access_key not in said


def test_no_weights_are_downloaded(
    uri: str,
    model: Path,
    seaweed: SeaweedStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enter(monkeypatch, seaweed.environment())
    assert main(["check", uri, "--device", "cpu", "--json"]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["speed"]["sample_bytes"] <= 16 << 20
    assert checks["verification"]["status"] in ("ok", "warn")


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "list", "secret"),
        ({"AWS_ACCESS_KEY_ID": NOBODY.access_key, "AWS_SECRET_ACCESS_KEY": NOBODY.secret_key}, "list", "403"),
    ],
    ids=["secret", "rights"],
)
def test_who_may_not_list_is_told_which_check_failed(
    change: dict[str, str],
    check: str,
    says: str,
    uri: str,
    seaweed: SeaweedStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enter(monkeypatch, {**seaweed.environment(), **change})
    assert main(["check", uri, "--json"]) == 1
    last = json.loads(capsys.readouterr().out)["checks"][-1]
    assert (last["check"], last["status"]) == (check, "fail")
    assert says in last["text"] + last["remedy"]


def test_an_endpoint_that_does_not_answer_is_told(
    seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        enter(monkeypatch, {**seaweed.environment(), "AWS_ENDPOINT_URL": endpoint})
        assert main(["check", "s3://bucket/m"]) == 1
    assert "No connection to the endpoint" in capsys.readouterr().out


def test_a_prefix_that_is_not_there_says_what_is(
    uri: str, seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(monkeypatch, seaweed.environment())
    assert main(["check", f"{uri}x"]) == 1
    said = capsys.readouterr().out
    assert "fail  list" in said
    assert f"In s3://{parse_source(uri).bucket} there is: m/" in said
