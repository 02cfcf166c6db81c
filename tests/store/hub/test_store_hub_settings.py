"""Where the hub is, who asks, and what is done where it may not be asked."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.source.uri import parse_source
from headrace.store.errors import BadEndpoint, NoCredentials, NotFound
from headrace.store.hub.open import find_snapshot, open_hub
from headrace.store.hub.principal import GivenHubToken, HubPrincipal, RenewedHubToken
from headrace.store.hub.settings import hub_cache, offline_variable, resolve_hub_settings
from headrace.store.hub.store import HubStore
from headrace.store.local.store import LocalStore

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def principal_of(home: Path, **variables: str) -> HubPrincipal:
    return resolve_hub_settings({"HF_HOME": str(home), **variables}).principal


def test_nothing_set_is_the_hub_itself_and_nobody(tmp_path: Path) -> None:
    settings = resolve_hub_settings({"HF_HOME": str(tmp_path)})
    assert (settings.url, settings.endpoint_from) == ("https://huggingface.co", "default")
    assert (settings.principal.is_anonymous, settings.principal.token()) == (True, "")
    assert settings.principal.origin == f"no HF_TOKEN, no {tmp_path / 'token'}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://Mirror.Example/", "https://mirror.example"),
        ("http://h:8080/api/hf//", "http://h:8080/api/hf"),
    ],
)
def test_a_mirror_is_named_by_hf_endpoint(text: str, url: str) -> None:
    settings = resolve_hub_settings({"HF_ENDPOINT": text, "HF_TOKEN": "t"})
    assert (settings.url, settings.endpoint_from) == (url, "HF_ENDPOINT")
    assert settings.address("/api/x").shown == f"{url}/api/x"


@pytest.mark.parametrize(
    "text", ["mirror.example", "ftp://h", "https://u:hush@h", "https://h?hush", "https://"]
)
def test_an_endpoint_that_is_no_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadEndpoint, match="HF_ENDPOINT") as caught:
        resolve_hub_settings({"HF_ENDPOINT": text})
    assert "hush" not in str(caught.value)


def test_the_variable_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    found = principal_of(tmp_path, HF_TOKEN=" hf_variable\n")
    assert (found.token(), found.origin) == ("hf_variable", "HF_TOKEN")
    assert principal_of(tmp_path, HUGGING_FACE_HUB_TOKEN="hf_old").origin == "HUGGING_FACE_HUB_TOKEN"


def test_the_file_of_a_login_is_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    found = principal_of(tmp_path)
    assert (found.token(), found.origin) == ("hf_file", str(tmp_path / "token"))
    other = tmp_path / "elsewhere"
    other.write_text("hf_elsewhere")
    assert principal_of(tmp_path, HF_TOKEN_PATH=str(other)).token() == "hf_elsewhere"


def test_a_token_is_not_sent_where_the_hubs_tools_would_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    found = principal_of(tmp_path, HF_HUB_DISABLE_IMPLICIT_TOKEN="1", HF_TOKEN="hf_variable")
    assert (found.is_anonymous, found.origin) == (True, "HF_HUB_DISABLE_IMPLICIT_TOKEN")


def test_a_login_that_is_refreshed_is_left_to_the_hubs_library(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_oauth")
    (tmp_path / "stored_tokens").write_text("[mine]\nhf_token = hf_oauth\nrefresh_token = r\n")
    found = principal_of(tmp_path)
    assert isinstance(found, RenewedHubToken)
    assert found.origin == str(tmp_path / "token")


def test_the_library_finds_the_same_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_oauth\n")
    (tmp_path / "stored_tokens").write_text(
        "[mine]\nhf_token = hf_oauth\nrefresh_token = r\nexpires_at = 9999999999\n"
    )
    code = (
        "from headrace.store.hub.settings import resolve_hub_settings as r; import sys;"
        "p = r().principal; assert 'huggingface_hub' not in sys.modules; print(p.token(), p.shown)"
    )
    environment = {"HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "hf_oauth a token that is renewed"


def test_a_token_exchange_that_fails_is_told(tmp_path: Path) -> None:
    found = principal_of(tmp_path, HF_OIDC_RESOURCE="org/name")
    assert found.origin == "HF_OIDC_RESOURCE"
    code = (
        "from headrace.store.hub.principal import RenewedHubToken\n"
        "from headrace.store.errors import NoCredentials\n"
        "try: RenewedHubToken('HF_OIDC_RESOURCE').token()\n"
        "except NoCredentials as error: print(error)"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_OIDC_RESOURCE": "org/name", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("HF_OIDC_RESOURCE: No token can be had for the hub: ")


def test_a_token_that_no_request_can_carry_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="HF_TOKEN: It holds a character") as caught:
        principal_of(tmp_path, HF_TOKEN="hush\nX-Header: 1")
    assert "hush" not in str(caught.value)


def test_a_file_with_what_no_request_can_carry_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush hush")
    with pytest.raises(NoCredentials, match="token: It holds a character") as caught:
        principal_of(tmp_path)
    assert "hush" not in str(caught.value)


def test_a_tokens_file_that_is_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(NoCredentials, match="cannot be read"):
        principal_of(tmp_path)


def test_a_token_is_not_shown(tmp_path: Path) -> None:
    assert "hush" not in repr(GivenHubToken("HF_TOKEN", "hush"))
    assert "hush" not in repr(resolve_hub_settings({"HF_HOME": str(tmp_path), "HF_TOKEN": "hush"}))


def test_a_token_over_plain_http_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("mirror.example", "127.0.0.1:80"):
        HubStore(
            parse_source("hf://org/n"),
            resolve_hub_settings({"HF_ENDPOINT": f"http://{host}", "HF_TOKEN": "t"}),
        )
    assert caplog.messages == ["http://mirror.example: the token in HF_TOKEN is sent unencrypted."]


# ---- offline


def cached(home: Path, revision: str = "main", sub: str = "") -> Path:
    """A snapshot as huggingface_hub leaves it behind."""
    repository = home / "hub" / "models--org--name"
    folder = repository / "snapshots" / COMMIT
    (folder / sub).mkdir(parents=True)
    (folder / sub / "config.json").write_text("{}")
    (repository / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(COMMIT)
    return folder


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_said_as_to_the_hubs_tools(name: str, value: str) -> None:
    assert offline_variable({name: value}) == name
    assert offline_variable({name: "0"}) == ""


@pytest.mark.parametrize(
    ("uri", "revision", "sub"),
    [
        ("hf://org/name", "main", ""),
        ("org/name", "main", ""),
        ("hf://org/name@refs/pr/1", "refs/pr/1", ""),
        (f"hf://org/name@{COMMIT}", "main", ""),
        ("hf://org/name/sub", "main", "sub"),
    ],
)
def test_offline_a_snapshot_in_the_cache_is_used(
    tmp_path: Path, uri: str, revision: str, sub: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = cached(tmp_path, revision, sub)
    with caplog.at_level(logging.INFO):
        store = open_hub(parse_source(uri), {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert isinstance(store, LocalStore)
    assert store.source.prefix == str(folder / sub).rstrip("/")
    assert store.list().find("config.json") is not None
    assert "since HF_HUB_OFFLINE is set" in caplog.messages[0]


@pytest.mark.parametrize("uri", ["hf://org/other", "hf://org/name@v2", "hf://org/name/nothing"])
def test_offline_without_a_snapshot_is_an_error_with_ways_out(tmp_path: Path, uri: str) -> None:
    cached(tmp_path)
    with pytest.raises(NotFound, match="HF_HUB_OFFLINE is set, and the hub's cache on this disk") as caught:
        open_hub(parse_source(uri), {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert "Unset HF_HUB_OFFLINE" in caught.value.remedy
    assert "hf download org/" in caught.value.remedy


def test_a_reference_that_is_no_commit_leads_nowhere(tmp_path: Path) -> None:
    folder = cached(tmp_path)
    (folder.parents[2] / "other").mkdir()
    (tmp_path / "hub" / "models--org--name" / "refs" / "main").write_text("../../other")
    assert find_snapshot(parse_source("hf://org/name"), tmp_path / "hub") is None


def test_the_cache_is_where_the_hubs_tools_have_it() -> None:
    assert hub_cache({"HF_HUB_CACHE": "/c"}) == Path("/c")
    assert hub_cache({"HUGGINGFACE_HUB_CACHE": "/c"}) == Path("/c")
    assert hub_cache({"HF_HOME": "/h"}) == Path("/h/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
