"""Tokens that google-auth makes: of every kind of file, renewed in time, and what it says when it cannot."""

import json
import logging
import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headrace.source.uri import parse_source
from headrace.store.base import read_range
from headrace.store.errors import (
    BadSignature,
    ExpiredCredentials,
    NoCredentials,
    StoreError,
    TransientError,
    Unreachable,
)
from headrace.store.gcs.principal import GoogleCredentials
from headrace.store.gcs.settings import resolve_gcs_settings
from headrace.store.gcs.sign_in import WRITE_SCOPE
from headrace.store.gcs.store import GcsStore
from tests.store.scripted_gcs import Answer, Asked, ScriptedGcs, Stored, error, scripted_gcs

DATA = bytes(range(200))
EMAIL = "loader@project.iam.gserviceaccount.com"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[ScriptedGcs]:
    with scripted_gcs() as running:
        running.objects["m/x"] = Stored(DATA)
        yield running


class Tokens:
    """Makes the server give tokens too, "token-1", "token-2" ..., of which it takes only the last one."""

    def __init__(self, server: ScriptedGcs, *, expires_in_s: int = 3600) -> None:
        self.asked: list[Asked] = []
        self.expires_in_s = expires_in_s
        self.failing: Answer | None = None
        self._lock = threading.Lock()
        server.refuse = self.answer

    def answer(self, asked: Asked) -> Answer | None:
        if asked.path.startswith("/storage/"):
            valid = asked.headers.get("authorization") == f"Bearer token-{len(self.asked)}"
            return None if valid else error(401, "authError", "Invalid Credentials")
        if self.failing is not None:
            return self.failing
        with self._lock:
            self.asked.append(asked)
            token = {"access_token": f"token-{len(self.asked)}", "expires_in": self.expires_in_s}
        if "generateAccessToken" in asked.path:
            expiry = datetime.now(UTC) + timedelta(seconds=self.expires_in_s)
            token = {
                "accessToken": token["access_token"],
                "expireTime": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        return Answer(
            200, json.dumps({**token, "token_type": "Bearer"}).encode(), {"Content-Type": "application/json"}
        )


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def service_account(server: ScriptedGcs, private_key: str) -> dict[str, Any]:
    return {
        "type": "service_account",
        "client_email": EMAIL,
        "private_key_id": "1",
        "private_key": private_key,
        "token_uri": f"{server.url}/token",
    }


def user() -> dict[str, Any]:
    secrets = {"client_id": "id", "client_secret": "word", "refresh_token": "1//refresh-secret"}
    return {"type": "authorized_user", **secrets}


def store_of(server: ScriptedGcs, tmp_path: Path, info: dict[str, Any]) -> GcsStore:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(info))
    environ = {"HEADRACE_GCS_ENDPOINT": server.url, "GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    store = GcsStore(parse_source("gs://bucket/m"), resolve_gcs_settings(environ))
    if info["type"] == "authorized_user":  # google-auth takes the address from no file
        credentials_of(store)._token_uri = f"{server.url}/token"
    return store


def credentials_of(store: GcsStore) -> Any:
    principal = store.settings.principal
    assert isinstance(principal, GoogleCredentials)
    return principal._credentials


def let_expire(store: GcsStore, in_s: float) -> None:
    credentials_of(store).expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=in_s)


def test_a_service_accounts_key_signs_for_the_right_to_read(
    server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    tokens = Tokens(server)
    store = store_of(server, tmp_path, service_account(server, private_key))
    assert store.list().objects
    (asked,) = tokens.asked
    assertion = parse_qs(asked.body.decode())["assertion"][0]
    claims = json.loads(urlsafe_b64decode(assertion.split(".")[1] + "=="))
    assert (claims["iss"], claims["scope"]) == (EMAIL, "https://www.googleapis.com/auth/devstorage.read_only")
    assert store.settings.principal.shown == f"the service account {EMAIL}"


def test_who_pushes_asks_for_the_right_to_write(
    server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(service_account(server, private_key)))
    settings = resolve_gcs_settings({"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, scope=WRITE_SCOPE)
    assert isinstance(settings.principal, GoogleCredentials)
    assert settings.principal._credentials.scopes == [WRITE_SCOPE]


def test_a_signed_in_user_asks_for_no_other_rights_than_were_given(
    server: ScriptedGcs, tmp_path: Path
) -> None:
    tokens = Tokens(server)
    assert store_of(server, tmp_path, user()).list().objects
    assert "scope" not in parse_qs(tokens.asked[0].body.decode())


def test_a_workload_identity_exchanges_its_file_for_a_token(server: ScriptedGcs, tmp_path: Path) -> None:
    tokens = Tokens(server)
    (tmp_path / "oidc").write_text("a-cluster's-token")
    info = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server.url}/sts",
        "credential_source": {"file": str(tmp_path / "oidc")},
    }
    store = store_of(server, tmp_path, info)
    assert store.list().objects
    (asked,) = tokens.asked  # and nothing else, such as the name of a project
    assert parse_qs(asked.body.decode())["subject_token"] == ["a-cluster's-token"]
    assert store.settings.principal.shown == "the workload identity"


def test_an_impersonated_service_account_is_asked_for_by_another(
    server: ScriptedGcs, private_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(server)
    info = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": f"{server.url}/v1/projects/-/serviceAccounts/{EMAIL}:generateAccessToken",
        "source_credentials": service_account(server, private_key),
    }
    monkeypatch.setattr(  # no file may lead it elsewhere
        "google.auth.iam._IAM_ENDPOINT",
        f"{server.url}/v1/projects/-/serviceAccounts/{{}}:generateAccessToken",
    )
    store = store_of(server, tmp_path, info)
    assert store.list().objects
    _, other = tokens.asked
    assert other.headers["authorization"] == "Bearer token-1"
    assert json.loads(other.body)["scope"] == ["https://www.googleapis.com/auth/devstorage.read_only"]
    assert store.settings.principal.shown == f"the impersonated service account {EMAIL}"


def test_a_token_is_renewed_minutes_before_it_expires(
    server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    tokens = Tokens(server)
    store = store_of(server, tmp_path, service_account(server, private_key))
    (item,) = store.list().objects
    reader = store.open_reader()
    read_range(reader, item, 0, 10)
    assert len(tokens.asked) == 1
    let_expire(store, 120)
    assert read_range(reader, item, 0, 10) == DATA[:10]
    assert len(tokens.asked) == 2


def test_a_token_that_is_revoked_is_replaced_once(
    server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    tokens = Tokens(server)
    store = store_of(server, tmp_path, service_account(server, private_key))
    (item,) = store.list().objects
    tokens.asked.append(tokens.asked[0])  # the server takes the first one no more
    assert read_range(store.open_reader(), item, 0, 10) == DATA[:10]
    tokens.failing = Answer(200, json.dumps({"access_token": "no", "expires_in": 3600}).encode())
    tokens.asked.append(tokens.asked[0])
    asked = len(server.log)
    with pytest.raises(ExpiredCredentials):
        read_range(store.open_reader(), item, 0, 10)
    assert len(server.log) == asked + 3  # refused, renewed, refused


def test_many_threads_have_one_token_made(server: ScriptedGcs, private_key: str, tmp_path: Path) -> None:
    tokens = Tokens(server)
    store = store_of(server, tmp_path, service_account(server, private_key))
    threads = [threading.Thread(target=store.settings.principal.token) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens.asked) == 1


def test_a_token_server_that_is_away_does_not_end_a_load_while_the_token_holds(
    server: ScriptedGcs, private_key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tokens = Tokens(server)
    store = store_of(server, tmp_path, service_account(server, private_key))
    (item,) = store.list().objects
    let_expire(store, 120)
    tokens.failing = Answer(400, b'{"error": "temporarily_gone"}')
    assert read_range(store.open_reader(), item, 0, 10) == DATA[:10]
    assert "still holds" in caplog.text
    let_expire(store, -1)
    with pytest.raises(StoreError):
        read_range(store.open_reader(), item, 0, 10)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            Answer(
                400, b'{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}'
            ),
            ExpiredCredentials,
            "expired or revoked.*Check that GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            Answer(
                400,
                b'{"error": "invalid_grant", "error_description": "Invalid JWT: Token must be a short-lived token'
                b' (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."}',
            ),
            BadSignature,
            "clock",
        ),
        (Answer(401, b'{"error": "unauthorized_client"}'), NoCredentials, "unauthorized_client"),
        (Answer(200, b"<html>"), NoCredentials, "No access token"),
    ],
)
def test_what_google_says_of_credentials_becomes_a_typed_error(
    answer: Answer, kind: type[StoreError], said: str, server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    Tokens(server).failing = answer
    with pytest.raises(kind, match=said) as caught:
        store_of(server, tmp_path, service_account(server, private_key)).list()
    assert EMAIL in str(caught.value)
    assert "PRIVATE" not in str(caught.value)


def test_a_users_secrets_are_in_no_message(server: ScriptedGcs, tmp_path: Path) -> None:
    Tokens(server).failing = Answer(400, b'{"error": "invalid_grant", "error_description": "Bad Request"}')
    with pytest.raises(ExpiredCredentials, match="gcloud auth application-default login") as caught:
        store_of(server, tmp_path, user()).list()
    assert "secret" not in str(caught.value)
    assert "word" not in str(caught.value)


def test_a_token_server_that_is_not_there_is_named(
    server: ScriptedGcs, private_key: str, tmp_path: Path
) -> None:
    info = {**service_account(server, private_key), "token_uri": "http://127.0.0.1:1/token"}
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1: No connection.*the credential file"):
        store_of(server, tmp_path, info).list()


def test_a_token_server_that_fails_is_worth_another_try(
    server: ScriptedGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    Tokens(server).failing = Answer(503, b'{"error": "server_error"}')
    with pytest.raises(TransientError, match="No access token"):
        store_of(server, tmp_path, user()).list()
