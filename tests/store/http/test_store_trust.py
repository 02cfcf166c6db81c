"""TLS: whose certificates are believed, which one of our own is shown, and the switch that checks nothing."""

import logging
import random
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from botocore.exceptions import BotoCoreError
from cryptography.hazmat.primitives import serialization

from headrace.demo.identity import Tls
from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.errors import BadEndpoint, TlsError
from headrace.store.http import connect, trust
from headrace.store.http.trust import resolve_trust
from headrace.store.s3.client import make_s3_client, store_error
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.store import S3Store
from tests.faults.opening import environment_of, only_object
from tests.faults.server import FaultServer, Stored

KEY = "model/model.safetensors"
DATA = random.Random(6).randbytes(20_000)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _nothing_of_the_developers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    # OpenSSL reads its variables when a context is made.
    monkeypatch.setattr(trust, "_contexts", {})
    monkeypatch.setattr(connect, "_insecure_urls", set())


def serving(tls: Tls, authority: trustme.CA | None = None) -> FaultServer:
    """A server that asks for a certificate which the authority has signed, if there is one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.key)
    if authority is not None:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return FaultServer({KEY: Stored.of(DATA)}, tls=context)


@pytest.fixture
def server(loopback_tls: Tls) -> Iterator[FaultServer]:
    running = serving(loopback_tls)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def clients_authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def asking_server(loopback_tls: Tls, clients_authority: trustme.CA) -> Iterator[FaultServer]:
    running = serving(loopback_tls, clients_authority)
    yield running
    running.stop()


def settings_of(server: FaultServer, **variables: str) -> S3Settings:
    return resolve_s3_settings({**environment_of(server), **variables})


def store_of(server: FaultServer, **variables: str) -> S3Store:
    return S3Store(parse_source("s3://bucket/model"), settings_of(server, **variables), stall_timeout_s=5)


def load(store: S3Store) -> bytes:
    return read_whole(store.open_reader(), only_object(store))


def upload_client_reads(settings: S3Settings) -> bytes:
    """What the client of uploads is answered."""
    data: bytes = make_s3_client(settings, attempts=1).get_object(Bucket="bucket", Key=KEY)["Body"].read()
    return data


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_a_bundle_that_a_variable_names_is_believed_for_reads_and_uploads(
    variable: str, server: FaultServer, loopback_tls: Tls
) -> None:
    bundle = {variable: str(loopback_tls.certificate)}
    assert load(store_of(server, **bundle)) == DATA
    assert upload_client_reads(settings_of(server, **bundle)) == DATA


def test_openssls_own_variable_is_believed_for_reads_and_uploads(
    server: FaultServer, loopback_tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(loopback_tls.certificate))
    assert load(store_of(server)) == DATA
    assert upload_client_reads(settings_of(server)) == DATA


def test_the_stores_own_variable_wins(server: FaultServer, loopback_tls: Tls, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    store = store_of(server, AWS_CA_BUNDLE=str(other), REQUESTS_CA_BUNDLE=str(loopback_tls.certificate))
    with pytest.raises(TlsError, match=rf"is not trusted by {other}") as caught:
        store.list()
    assert "AWS_CA_BUNDLE" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "ended", "cause", "remedy"),
    [
        (
            "elsewhere.example",
            None,
            r"not valid for '127\.0\.0\.1'\.",
            "the name that the certificate is made for",
        ),
        (
            "127.0.0.1",
            datetime(2020, 1, 1, tzinfo=UTC),
            r"expired\.",
            "renewed, and check this machine's clock",
        ),
    ],
)
def test_an_expired_or_foreign_name_is_still_refused_with_the_right_bundle(
    tmp_path: Path, name: str, ended: datetime | None, cause: str, remedy: str
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(name, not_after=ended)
    tls = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    for pem in (*certificate.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(str(tls.certificate), append=True)
    certificate.private_key_pem.write_to_path(str(tls.key))
    running = serving(tls)
    try:
        with pytest.raises(TlsError, match=cause) as caught:
            store_of(running, AWS_CA_BUNDLE=str(tls.certificate)).list()
    finally:
        running.stop()
    assert remedy in caught.value.remedy
    assert ".." not in str(caught.value)


# ---- client certificates


@pytest.mark.parametrize("one_file", [True, False])
def test_a_client_certificate_is_shown_in_reads_and_uploads(
    one_file: bool,
    asking_server: FaultServer,
    loopback_tls: Tls,
    clients_authority: trustme.CA,
    tmp_path: Path,
) -> None:
    certificate = clients_authority.issue_cert("me@example.com")
    shown = {
        "AWS_CA_BUNDLE": str(loopback_tls.certificate),
        "HEADRACE_CLIENT_CERT": str(tmp_path / "cert.pem"),
    }
    if one_file:
        certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    else:
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
        certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
        shown["HEADRACE_CLIENT_KEY"] = str(tmp_path / "key.pem")
    assert load(store_of(asking_server, **shown)) == DATA
    assert upload_client_reads(settings_of(asking_server, **shown)) == DATA


def test_a_server_that_asks_for_a_certificate_is_told_with_the_variable(
    asking_server: FaultServer, loopback_tls: Tls
) -> None:
    with pytest.raises(TlsError, match="The server asks for a client certificate") as caught:
        store_of(asking_server, AWS_CA_BUNDLE=str(loopback_tls.certificate)).list()
    assert "HEADRACE_CLIENT_CERT" in caught.value.remedy
    assert asking_server.log == []


def test_a_certificate_that_the_server_does_not_trust_is_named(
    asking_server: FaultServer, loopback_tls: Tls, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.pem"
    trustme.CA().issue_cert("me@example.com").private_key_and_cert_chain_pem.write_to_path(str(mine))
    shown = {"AWS_CA_BUNDLE": str(loopback_tls.certificate), "HEADRACE_CLIENT_CERT": str(mine)}
    with pytest.raises(TlsError, match=rf"refuses the client certificate {mine}"):
        store_of(asking_server, **shown).list()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(server: FaultServer, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("me@example.com")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )
    store = store_of(
        server,
        HEADRACE_CLIENT_CERT=str(tmp_path / "cert.pem"),
        HEADRACE_CLIENT_KEY=str(tmp_path / "key.pem"),
    )
    with pytest.raises(BadEndpoint, match="client certificate cannot be used") as caught:
        store.list()
    assert "without a password" in caught.value.remedy


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (
            {"HEADRACE_CLIENT_CERT": "/no/such.pem"},
            "client certificate from HEADRACE_CLIENT_CERT does not exist",
        ),
        ({"HEADRACE_CLIENT_CERT": __file__, "HEADRACE_CLIENT_KEY": "/no/such.pem"}, "client key from"),
        ({"HEADRACE_CLIENT_KEY": __file__}, "HEADRACE_CLIENT_CERT is not"),
        ({"REQUESTS_CA_BUNDLE": "/"}, "CA bundle from REQUESTS_CA_BUNDLE is a folder"),
        ({"REQUESTS_CA_BUNDLE": "/no/such.pem"}, "CA bundle from REQUESTS_CA_BUNDLE does not exist"),
        ({"HEADRACE_INSECURE_TLS": "maybe"}, "HEADRACE_INSECURE_TLS: It is 'maybe'"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(variables: dict[str, str], why: str) -> None:
    with pytest.raises(BadEndpoint, match=why):
        resolve_trust(variables)


# ---- without checking


def test_the_insecure_switch_takes_any_certificate_and_warns_once(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(server, HEADRACE_INSECURE_TLS="1")
    with caplog.at_level(logging.WARNING):
        assert load(store) == DATA
        assert load(store) == DATA
    (warning,) = [record.getMessage() for record in caplog.records]
    assert server.url in warning and "NOT checked" in warning


@pytest.mark.filterwarnings("error")
def test_the_insecure_switch_counts_for_uploads_too(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert upload_client_reads(settings_of(server, HEADRACE_INSECURE_TLS="yes")) == DATA
    assert server.url in caplog.text


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_without_the_switch_nothing_is_taken_unchecked(value: str, server: FaultServer) -> None:
    with pytest.raises(TlsError):
        store_of(server, HEADRACE_INSECURE_TLS=value).list()
    settings = settings_of(server, HEADRACE_INSECURE_TLS=value)
    with pytest.raises(BotoCoreError) as caught:
        upload_client_reads(settings)
    assert isinstance(store_error(caught.value, "s3://bucket", settings, "bucket"), TlsError)
