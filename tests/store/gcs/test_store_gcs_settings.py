"""Where Cloud Storage is and who asks, by the environment."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.store.errors import BadEndpoint, NoCredentials
from headrace.store.gcs import sign_in as gcs_sign_in
from headrace.store.gcs.metadata_server import finds_metadata_server, metadata_host
from headrace.store.gcs.settings import resolve_gcs_settings
from tests.store.scripted_gcs import Answer, Asked, ScriptedGcs, scripted_gcs

NOWHERE = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": "/nonexistent"}
TOKEN = "ya29.a-secret-token-of-many-letters"


@pytest.fixture
def server() -> Iterator[ScriptedGcs]:
    with scripted_gcs() as running:
        yield running


@pytest.fixture
def no_google_auth(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the extra is not installed."""
    monkeypatch.setattr(gcs_sign_in, "find_spec", lambda name: None)


def user_file(folder: Path) -> Path:
    path = folder / "application_default_credentials.json"
    path.write_text(
        json.dumps(
            {
                "type": "authorized_user",
                "client_id": "id",
                "client_secret": "word",
                "refresh_token": "1//secret",
            }
        )
    )
    return path


def test_google_itself_is_the_default() -> None:
    found = resolve_gcs_settings(NOWHERE)
    assert (found.endpoint_url, found.endpoint_from) == ("https://storage.googleapis.com", "default")


def test_another_universe_has_its_own_address() -> None:
    found = resolve_gcs_settings({**NOWHERE, "GOOGLE_CLOUD_UNIVERSE_DOMAIN": "apis-example.goog"})
    assert found.endpoint_url == "https://storage.apis-example.goog"


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1/"}, "http://127.0.0.1:1"),
        ({"STORAGE_EMULATOR_HOST": "localhost:4443"}, "http://localhost:4443"),
        ({"CLOUD_STORAGE_EMULATOR_ENDPOINT": "https://h"}, "https://h"),
        ({"HEADRACE_GCS_ENDPOINT": "https://a", "STORAGE_EMULATOR_HOST": "http://b"}, "https://a"),
    ],
)
def test_an_endpoint_may_be_named(variables: dict[str, str], endpoint: str) -> None:
    assert resolve_gcs_settings({**NOWHERE, **variables}).endpoint_url == endpoint


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("storage.example.com", "no scheme"),
        ("ftp://host", "no scheme"),
        ("https://host/path", "without a path"),
        ("https://host?token=secret", "without a path"),
        ("https://user:secret@host", "user name or password"),
        ("https://host:x", "is not a URL"),
        ("https://:80", "a host"),
    ],
)
def test_an_endpoint_that_is_none_is_refused_without_its_secrets(endpoint: str, said: str) -> None:
    with pytest.raises(BadEndpoint, match=said) as caught:
        resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_ENDPOINT": endpoint})
    assert "secret" not in str(caught.value)
    assert "HEADRACE_GCS_ENDPOINT" in str(caught.value)


def test_an_emulator_gets_no_credentials(tmp_path: Path) -> None:
    user_file(tmp_path)
    environ = {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_AUTH_ACCESS_TOKEN": TOKEN}
    found = resolve_gcs_settings({**environ, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"})
    assert found.principal.is_anonymous
    assert found.principal.origin == "STORAGE_EMULATOR_HOST"


def test_a_given_token_is_used_and_not_shown() -> None:
    principal = resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_TOKEN": f" {TOKEN} "}).principal
    assert principal.token() == TOKEN
    assert not principal.renew(TOKEN)
    assert TOKEN not in f"{principal!r} {principal.shown} {principal.remedy}"


def test_a_token_that_no_request_can_carry_is_refused_and_not_shown() -> None:
    with pytest.raises(NoCredentials, match="no request can carry") as caught:
        resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_TOKEN": "two words"})
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("name", ["HEADRACE_GCS_ANONYMOUS", "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS"])
def test_anonymous_is_what_was_asked_for_whatever_else_there_is(name: str) -> None:
    principal = resolve_gcs_settings({name: "true", "HEADRACE_GCS_TOKEN": TOKEN}).principal
    assert (principal.is_anonymous, principal.asked_for, principal.origin) == (True, True, name)


def test_anonymous_can_be_switched_off() -> None:
    environ = {**NOWHERE, "HEADRACE_GCS_ANONYMOUS": "0", "HEADRACE_GCS_TOKEN": TOKEN}
    assert not resolve_gcs_settings(environ).principal.is_anonymous


def test_a_token_over_plain_http_to_another_machine_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    environ = {**NOWHERE, "HEADRACE_GCS_TOKEN": TOKEN, "HEADRACE_GCS_ENDPOINT": "http://10.0.0.1"}
    resolve_gcs_settings(environ)
    assert "sent unencrypted" in caplog.text
    assert TOKEN not in caplog.text


def test_run_ais_file_counts_before_googles(tmp_path: Path) -> None:
    environ = {
        **NOWHERE,
        "RUNAI_STREAMER_GCS_CREDENTIAL_FILE": str(user_file(tmp_path)),
        "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent.json",
    }
    principal = resolve_gcs_settings(environ).principal
    assert principal.origin == "RUNAI_STREAMER_GCS_CREDENTIAL_FILE"
    assert principal.shown == "the user"


def test_what_gcloud_left_behind_is_found(tmp_path: Path) -> None:
    path = user_file(tmp_path)
    principal = resolve_gcs_settings({"CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "1"}).principal
    assert (principal.origin, principal.asked_for) == (str(path), False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("{", "no credential file of Google's"),
        ("[]", "no credential file of Google's"),
        ('{"a": 1}', "no credential file of Google's"),
        ('{"type": "my_own"}', "'my_own', which is not known"),
        ('{"type": "service_account", "private_key": "SECRET"}', "no usable credential file"),
        (
            '{"type": "service_account", "private_key": "SECRET", "client_email": "a@b", "token_uri": "https://x"}',
            "no usable credential file",
        ),
        ('{"type": "authorized_user"}', "no usable credential file"),
        ('{"type": "external_account"}', "no usable credential file"),
        ('{"type": "impersonated_service_account"}', "no usable credential file"),
    ],
)
def test_a_credential_file_that_cannot_be_used_is_named(
    content: str | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoCredentials, match=said) as caught:
        resolve_gcs_settings({**NOWHERE, "GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert str(path) in str(caught.value)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_without_google_auth_a_file_is_an_error_with_the_command_that_installs_it(
    no_google_auth: None, tmp_path: Path
) -> None:
    environ = {**NOWHERE, "GOOGLE_APPLICATION_CREDENTIALS": str(user_file(tmp_path))}
    with pytest.raises(NoCredentials) as caught:
        resolve_gcs_settings(environ)
    assert caught.value.remedy == "Run: pip install 'headrace[gcs]'"
    assert "\n" not in str(caught.value)


def test_without_google_auth_a_token_and_anonymous_reads_work(no_google_auth: None) -> None:
    assert resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_TOKEN": TOKEN}).principal.token() == TOKEN
    found = resolve_gcs_settings({"CLOUDSDK_CONFIG": "/nonexistent"}).principal
    assert found.is_anonymous
    assert "pip install 'headrace[gcs]'" in found.remedy


def test_nothing_found_is_anonymous_but_not_asked_for() -> None:
    principal = resolve_gcs_settings(NOWHERE).principal
    assert (principal.is_anonymous, principal.asked_for) == (True, False)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in principal.origin


def test_a_metadata_server_is_not_asked_when_told_not_to(server: ScriptedGcs) -> None:
    host = server.url.removeprefix("http://")
    resolve_gcs_settings({**NOWHERE, "GCE_METADATA_HOST": host})
    assert server.log == []


def test_what_says_that_it_is_googles_is_a_metadata_server(server: ScriptedGcs) -> None:
    def flavoured(asked: Asked) -> Answer:
        assert asked.headers["metadata-flavor"] == "Google"
        return Answer(200, b"", {"Metadata-Flavor": "Google"})

    environ = {"GCE_METADATA_HOST": server.url.removeprefix("http://")}
    assert not finds_metadata_server(environ)  # another cloud's, at the same address
    server.refuse = flavoured
    assert finds_metadata_server(environ)


@pytest.mark.parametrize("host", ["host:port", "[::1", ":99999"])
def test_a_metadata_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(BadEndpoint, match="GCE_METADATA_HOST"):
        finds_metadata_server({"GCE_METADATA_HOST": host})


def test_the_usual_metadata_address_is_googles() -> None:
    assert metadata_host({}) == "169.254.169.254"


def test_the_machines_service_account_gives_tokens_without_a_proxy(server: ScriptedGcs) -> None:
    """In a process of its own: google-auth reads the variable when it is imported."""

    def metadata(asked: Asked) -> Answer | None:
        flavour = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
        if asked.path.endswith("/token"):
            scope = asked.query["scopes"]
            return Answer(
                200, json.dumps({"access_token": f"for-{scope}", "expires_in": 3599}).encode(), flavour
            )
        if asked.path.endswith("/service-accounts/default/"):
            return Answer(200, b'{"email": "sa@p.iam.gserviceaccount.com", "scopes": []}', flavour)
        return Answer(200, b"", flavour)

    server.refuse = metadata
    script = (
        "from headrace.store.gcs.settings import resolve_gcs_settings\n"
        "who = resolve_gcs_settings().principal\n"
        "print(who.token(), who.shown, who.origin, sep='\\n')"
    )
    environ = {
        "GCE_METADATA_HOST": server.url.removeprefix("http://"),
        "CLOUDSDK_CONFIG": "/nonexistent",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "for-https://www.googleapis.com/auth/devstorage.read_only",
        "the service account of this machine sa@p.iam.gserviceaccount.com",
        "the metadata server",
    ]


def test_a_project_that_pays_has_an_id() -> None:
    assert (
        resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_USER_PROJECT": "my-project"}).user_project
        == "my-project"
    )
    with pytest.raises(HeadraceError, match="no project's id"):
        resolve_gcs_settings({**NOWHERE, "HEADRACE_GCS_USER_PROJECT": "my project\r\nx: y"})
