"""Who asks: each way to sign in that can be served on loopback, by botocore's chain, and what is told of it."""

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.described import Setting
from headrace.store.errors import NoCredentials
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from tests.faults.server import FaultServer, fault_server

DATA = b"some bytes"
# botocore asks for new ones ten minutes before they expire.
SOON_S, LATER_S = 300, 7200


def expiry(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class SignIn:
    """Gives out credentials as ECS and EKS pods get them (GET) and as STS does (POST).

    Attributes:
        lives_s: how long coming credentials live, then `LATER_S`.
        asked: what it was asked with: the Authorization header, or the form's fields.
    """

    def __init__(self) -> None:
        self.lives_s: list[int] = []
        self.asked: list[object] = []
        self._given = 0
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ours.asked.append(self.headers.get("Authorization"))
                facts = ours.next_credentials()
                facts["Token"] = facts.pop("SessionToken")
                self._send(json.dumps(facts), "application/json")

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                fields = {name: values[0] for name, values in form.items()}
                ours.asked.append(fields)
                action, facts = fields["Action"], ours.next_credentials()
                inner = "".join(f"<{name}>{value}</{name}>" for name, value in facts.items())
                user = "<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>R:s</AssumedRoleId></AssumedRoleUser>"
                self._send(
                    f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
                    f"<Credentials>{inner}</Credentials>{user}</{action}Result></{action}Response>",
                    "text/xml",
                )

            def _send(self, text: str, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def next_credentials(self) -> dict[str, str]:
        self._given += 1
        return {
            "AccessKeyId": f"ASIAGIVENOUT{self._given:04}",
            "SecretAccessKey": "given-out-secret",
            "SessionToken": "given-out-token",
            "Expiration": expiry(self.lives_s.pop(0) if self.lives_s else LATER_S),
        }

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sign_in() -> Iterator[SignIn]:
    server = SignIn()
    yield server
    server.stop()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({"model/a": DATA}) as running:
        yield running


@pytest.fixture
def aws_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with AWS's files, which the tests write."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


@pytest.fixture(autouse=True)
def _endpoint(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def open_here() -> S3Store:
    return S3Store(parse_source("s3://bucket/model"), resolve_s3_settings())


def read(store: S3Store) -> bytes:
    (item,) = store.list().objects
    return read_whole(store.open_reader(), item)


def signed_by(server: FaultServer) -> list[str]:
    return [
        asked.headers["authorization"].partition("Credential=")[2].partition("/")[0] for asked in server.log
    ]


def principal(store: S3Store) -> Setting:
    (found,) = [setting for setting in store.describe() if setting.name == "principal"]
    return found


def test_keys_of_the_credentials_file(aws_files: Path, server: FaultServer) -> None:
    (aws_files / "credentials").write_text(
        "[default]\naws_access_key_id = AKFROMTHEFILE001\naws_secret_access_key = s\n"
    )
    store = open_here()
    assert read(store) == DATA
    assert set(signed_by(server)) == {"AKFROMTHEFILE001"}
    assert principal(store).value == "access key AKFR…E001"
    assert principal(store).origin == f"{aws_files / 'credentials'}, profile default"


def write_process(folder: Path, *lives_s: int) -> None:
    """A credential_process that gives out other credentials each time, the last ones again and again."""
    answers = [
        {
            "Version": 1,
            "AccessKeyId": f"ASIAPROCESS{number:05}",
            "SecretAccessKey": "s",
            "SessionToken": "t",
            "Expiration": expiry(seconds),
        }
        for number, seconds in enumerate(lives_s)
    ]
    (folder / "answers.json").write_text(json.dumps(answers))
    (folder / "process.py").write_text(
        "import json, pathlib, sys\n"
        f"path = pathlib.Path({str(folder / 'answers.json')!r})\n"
        "answers = json.loads(path.read_text())\n"
        "print(json.dumps(answers[0]))\n"
        "path.write_text(json.dumps(answers[1:] or answers))\n"
    )
    (folder / "config").write_text(
        f"[profile tool]\ncredential_process = {sys.executable} {folder / 'process.py'}\n"
    )


def test_a_process_gives_credentials(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    write_process(aws_files, LATER_S)
    store = open_here()
    assert read(store) == DATA
    assert set(signed_by(server)) == {"ASIAPROCESS00000"}
    assert principal(store).value == "process ASIA…0000, temporary"
    assert principal(store).origin == "credential_process of the profile tool"


def test_credentials_are_renewed_before_they_expire_while_a_load_is_under_way(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    write_process(aws_files, SOON_S, LATER_S)
    store = open_here()
    reader, (item,) = store.open_reader(), store.list().objects
    for _ in range(3):
        assert read_whole(reader, item) == DATA
    # The first ones still hold, but not for long: no request is signed with what may expire on the way.
    assert set(signed_by(server)) == {"ASIAPROCESS00001"}


def test_credentials_that_the_store_takes_for_expired_are_looked_for_again(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    write_process(aws_files, LATER_S, LATER_S)
    store = open_here()
    reader, (item,) = store.open_reader(), store.list().objects
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    server.refuse = lambda asked: (
        b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        if "ASIAPROCESS00000" in asked.headers["authorization"]
        else None
    )
    assert read_whole(reader, item) == DATA
    assert signed_by(server)[-1] == "ASIAPROCESS00001"


def test_a_process_that_fails_is_told_and_nothing_is_asked_without_a_signature(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    (aws_files / "config").write_text(
        f"[profile tool]\ncredential_process = {sys.executable} -c 'raise SystemExit(3)'\n"
    )
    with pytest.raises(NoCredentials, match="could not be had"):
        open_here()
    assert server.log == []


@pytest.mark.parametrize(
    "printed",
    ["", "SECRETXYZ", "[]", "null", '{"Version": 1}', '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "SECRETXYZ", '
     '"Expiration": "SECRETXYZ"}', "\\xff"],
)  # fmt: skip
def test_a_process_that_prints_something_else_is_told_without_what_it_printed(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    (aws_files / "printed").write_bytes(printed.encode().replace(rb"\xff", b"\xff"))
    (aws_files / "config").write_text(f"[profile tool]\ncredential_process = cat {aws_files / 'printed'}\n")
    with pytest.raises(NoCredentials, match=r"could not be had: .*[^.]\. .*profile") as caught:
        open_here().list()
    assert "SECRETXYZ" not in str(caught.value)
    assert server.log == []


def test_a_process_that_prints_something_else_when_it_is_asked_again_is_told(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    write_process(aws_files, 60)  # so short that they are asked for again before each request
    settings = resolve_s3_settings()
    settings.credentials()
    (aws_files / "answers.json").write_text('["SECRETXYZ"]')
    with pytest.raises(NoCredentials, match="expired and could not be renewed") as caught:
        S3Store(parse_source("s3://bucket/model"), settings).list()
    assert "SECRETXYZ" not in str(caught.value)


def test_a_quote_that_is_missing_in_the_process_is_told(
    aws_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    (aws_files / "config").write_text("[profile tool]\ncredential_process = cat 'SECRETXYZ\n")
    with pytest.raises(NoCredentials, match="credential_process"):
        open_here().list()


def test_a_pods_identity_is_taken_from_its_token_file(
    sign_in: SignIn, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the-pods-token")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{sign_in.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    store = open_here()
    assert read(store) == DATA
    assert sign_in.asked == ["the-pods-token"]
    assert set(signed_by(server)) == {"ASIAGIVENOUT0001"}
    assert principal(store).origin == "AWS_CONTAINER_CREDENTIALS_FULL_URI"


def test_a_pods_credentials_are_renewed(
    sign_in: SignIn, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in.lives_s = [SOON_S]
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{sign_in.url}/v1/credentials")
    assert read(open_here()) == DATA
    assert set(signed_by(server)) == {"ASIAGIVENOUT0002"}


def test_a_web_identity_is_exchanged_for_a_role(
    sign_in: SignIn, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the-service-accounts-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sign_in.url)
    store = open_here()
    assert read(store) == DATA
    (asked,) = sign_in.asked
    assert isinstance(asked, dict)
    assert asked["Action"] == "AssumeRoleWithWebIdentity"
    assert asked["WebIdentityToken"] == "the-service-accounts-token"
    assert set(signed_by(server)) == {"ASIAGIVENOUT0001"}
    assert principal(store).value == "role of a web identity ASIA…0001, temporary"
    assert principal(store).origin == "AWS_WEB_IDENTITY_TOKEN_FILE"


def test_a_role_is_assumed_with_the_source_profiles_keys(
    aws_files: Path, sign_in: SignIn, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (aws_files / "config").write_text(
        "[profile reader]\nrole_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\n"
    )
    (aws_files / "credentials").write_text("[base]\naws_access_key_id = AKBASE\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sign_in.url)
    store = open_here()
    assert read(store) == DATA
    (asked,) = sign_in.asked
    assert isinstance(asked, dict)
    assert (asked["Action"], asked["RoleArn"]) == ("AssumeRole", "arn:aws:iam::123456789012:role/reader")
    assert set(signed_by(server)) == {"ASIAGIVENOUT0001"}
    assert principal(store).origin == "role_arn of the profile reader"


def test_a_role_that_cannot_be_assumed_is_told(
    sign_in: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "no-such-token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sign_in.url)
    with pytest.raises(NoCredentials, match="no-such-token"):
        open_here()


def test_no_secret_is_described(aws_files: Path) -> None:
    (aws_files / "credentials").write_text(
        "[default]\naws_access_key_id = AKFROMTHEFILE001\naws_secret_access_key = hush-hush\n"
    )
    assert "hush" not in repr(open_here().describe())


def test_a_named_profile_that_has_none_is_told(
    aws_files: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "tool")
    (aws_files / "config").write_text("[profile tool]\nregion = us-east-1\n")
    server.refuse = lambda _asked: b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    store = open_here()
    assert "the profile tool has none" in principal(store).origin
    with pytest.raises(NoCredentials, match=r"the profile tool has none.*does not answer") as caught:
        store.list()
    assert caught.value.remedy.startswith("Give the profile tool keys or a role")
