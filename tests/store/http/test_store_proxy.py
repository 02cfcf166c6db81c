"""The environment's proxies: which one counts for which host, and bytes that come through one."""

import random
import ssl
from collections.abc import Iterator

import pytest
import trustme
from botocore.exceptions import ProxyConnectionError

from headrace.demo.identity import Tls
from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.errors import AccessDenied, BadEndpoint, TlsError, Unreachable
from headrace.store.http.connect import endpoint_of
from headrace.store.http.proxy import proxy_for
from headrace.store.s3.client import make_s3_client, store_error
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from tests.faults.opening import environment_of, only_object
from tests.faults.server import FaultServer, Stored, fault_server
from tests.store.forward_proxy import forward_proxy

KEY = "model/model.safetensors"
DATA = random.Random(4).randbytes(50_000)
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# No resolver knows it: only the proxy leads there.
HOST = "store.test"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _no_proxies_of_the_developers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)


def chosen(url: str) -> str | None:
    proxy = endpoint_of(url).proxy
    return f"{proxy.variable} {proxy.url}" if proxy else None


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://h", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://h", "HTTPS_PROXY http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://h", None),
        ({"https_proxy": "http://low:1", "HTTPS_PROXY": "http://up:2"}, "https://h", "https_proxy http://low:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http://h", "HTTP_PROXY http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://h", None),
        ({"ALL_PROXY": "p:1"}, "https://h", "ALL_PROXY http://p:1"),
        ({"all_proxy": "http://all:1", "http_proxy": "http://own:2"}, "http://h", "http_proxy http://own:2"),
        ({"HTTPS_PROXY": "http://p"}, "https://h", "HTTPS_PROXY http://p:80"),
        ({"HTTPS_PROXY": "http://[::1]:3128"}, "https://h", "HTTPS_PROXY http://[::1]:3128"),
        ({"HTTPS_PROXY": ""}, "https://h", None),
    ],
)  # fmt: skip
def test_the_variable_of_the_scheme_counts(
    variables: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert chosen(url) == expected


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "https://h", True),
        ("other,h", "https://h", True),
        ("example.com", "https://s3.example.com", True),
        (".example.com", "https://s3.example.com", True),
        ("example.com", "https://notexample.com", False),
        ("H", "https://h", True),
        ("h:9000", "https://h:9000", True),
        ("h:9000", "https://h:9001", False),
        ("10.1.2.3", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://10.1.2.3:9000", True),
        ("10.0.0.0/8 , h", "https://11.1.2.3", False),
        ("fd00::/8", "https://[fd00::1]", True),
        ("10.0.0.0/8", "https://h", False),
        ("", "https://h", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_hosts_domains_and_networks_of_no_proxy_are_reached_directly(
    name: str, no_proxy: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv(name, no_proxy)
    assert (chosen(url) is None) == direct


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_this_machine_is_reached_directly(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    assert chosen(f"http://{host}:9000") is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("socks5://user:hush@p:1", "kind socks5://"),
        ("https://user:hush@p:1", "kind https://"),
        ("http://user:hush@", "no proxy's address"),
        ("http://user:hush@p:port", "no proxy's address"),
        ("http://user:hush@a b:1", "no proxy's address"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused_and_its_password_not_shown(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(BadEndpoint, match=f"HTTPS_PROXY: .*{why}") as caught:
        endpoint_of("https://h")
    assert "hush" not in str(caught.value)


def test_a_password_of_the_proxy_is_not_in_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://us%40er:hu%3Ash@p:1")
    proxy = proxy_for("https", "h", 443)
    assert proxy is not None
    assert proxy.authorization == "Basic dXNAZXI6aHU6c2g="  # us@er:hu:sh
    assert "hu" not in proxy.url and "dXNA" not in repr(endpoint_of("https://h"))


# ---- bytes through a proxy


@pytest.fixture
def plain() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as server:
        yield server


@pytest.fixture
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultServer, Tls]]:
    """A server whose certificate is for HOST."""
    folder = tmp_path_factory.mktemp("tls")
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    for pem in (*certificate.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(str(tls.certificate), append=True)
    certificate.private_key_pem.write_to_path(str(tls.key))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.key)
    server = FaultServer({KEY: Stored.of(DATA)}, tls=context)
    yield server, tls
    server.stop()


def store_beyond(server: FaultServer, scheme: str, port: str = "", **variables: str) -> S3Store:
    environment = {**environment_of(server), "AWS_ENDPOINT_URL": f"{scheme}://{HOST}{port}", **variables}
    return S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(environment), stall_timeout_s=5)


def test_a_plain_store_is_read_through_the_proxy(plain: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with forward_proxy(plain.port, "user:hush") as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:hush@{proxy.address}")
        store = store_beyond(plain, "http", ":8333")
        assert read_whole(store.open_reader(), only_object(store)) == DATA
        assert proxy.asked[-1] == f"GET http://{HOST}:8333/bucket/{KEY} HTTP/1.1"
    # What was signed is what arrives.
    assert {asked.headers["host"] for asked in plain.log} == {f"{HOST}:8333"}
    assert not any("proxy-authorization" in asked.headers for asked in plain.log)


def test_a_real_store_takes_the_signature_of_what_comes_through_the_proxy(
    seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_s3_client(resolve_s3_settings(seaweed.environment()), attempts=1)
    client.create_bucket(Bucket="proxied")
    client.put_object(Bucket="proxied", Key="a b/x+y.bin", Body=DATA)
    with forward_proxy(int(seaweed.endpoint_url.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        environment = {**seaweed.environment(), "AWS_ENDPOINT_URL": f"http://{HOST}:8333"}
        store = S3Store(parse_source("s3://proxied/a b"), resolve_s3_settings(environment))
        (item,) = store.list().objects
        assert read_whole(store.open_reader(), item) == DATA
        assert len(proxy.asked) == 2


def test_a_tls_store_is_read_through_a_tunnel_with_one_connection(
    secure: tuple[FaultServer, Tls], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tls = secure
    with forward_proxy(server.port, "user:hush") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:hush@{proxy.address}")
        store = store_beyond(server, "https", AWS_CA_BUNDLE=str(tls.certificate))
        item = only_object(store)
        reader = store.open_reader()
        assert read_whole(reader, item) == DATA
        assert read_whole(reader, item) == DATA
        assert proxy.asked == [f"CONNECT {HOST}:443 HTTP/1.1"] * 2  # the listing's and the reader's
    assert not any("proxy-authorization" in asked.headers for asked in server.log)


def test_the_store_behind_a_tunnel_must_be_trusted_all_the_same(
    secure: tuple[FaultServer, Tls], monkeypatch: pytest.MonkeyPatch
) -> None:
    with forward_proxy(secure[0].port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        with pytest.raises(TlsError, match=f"certificate of {HOST} is not trusted"):
            store_beyond(secure[0], "https").list()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_another_password_is_named_without_it(
    scheme: str, plain: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forward_proxy(plain.port, "user:other") as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:hush@{proxy.address}")
        with pytest.raises(
            AccessDenied, match=f"proxy http://{proxy.address} does not let this user"
        ) as caught:
            store_beyond(plain, scheme).list()
    assert f"{scheme}_proxy" in caught.value.remedy
    assert "hush" not in str(caught.value)
    assert plain.log == []


@pytest.mark.parametrize(
    ("refusal", "kind", "why"),
    [
        (b"HTTP/1.1 403 No\r\n\r\n", BadEndpoint, "refuses the connection"),
        (b"HTTP/1.1 502 No\r\n\r\n", Unreachable, "does not reach the endpoint"),
        (b"SSH-2.0-x\r\n\r\n", BadEndpoint, "does not answer as a proxy does"),
        (b"HTTP/1.1 2", Unreachable, "does not answer: it closed the connection"),
    ],
)
def test_a_tunnel_that_is_refused_names_the_proxy(
    refusal: bytes, kind: type[BadEndpoint], why: str, plain: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forward_proxy(plain.port) as proxy:
        proxy.refusal = refusal
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        with pytest.raises(kind, match=why) as caught:
            store_beyond(plain, "https").list()
        assert type(caught.value) is kind
        assert proxy.address in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_named(
    scheme: str, plain: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forward_proxy(plain.port) as proxy:
        address = proxy.address
    monkeypatch.setenv(f"{scheme}_proxy", f"http://user:hush@{address}")
    with pytest.raises(Unreachable, match=f"No connection to the proxy http://{address}") as caught:
        store_beyond(plain, scheme).list()
    assert "NO_PROXY" in caught.value.remedy
    assert "hush" not in str(caught.value)


def test_a_proxy_whose_name_is_unknown_is_told_as_the_proxys(
    plain: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://no-such-proxy.invalid:1")
    with pytest.raises(Unreachable, match=r"The proxy no-such-proxy\.invalid cannot be found"):
        store_beyond(plain, "https").list()


def test_uploads_take_the_same_way(plain: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with forward_proxy(plain.port, "user:hush") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:hush@{proxy.address}")
        client = make_s3_client(store_beyond(plain, "http", ":8333").settings, attempts=1)
        assert client.get_object(Bucket="bucket", Key=KEY)["Body"].read() == DATA
        assert len(proxy.asked) == 1


def test_uploads_that_no_proxy_passes_on_name_it(plain: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = store_beyond(plain, "https").settings
    with forward_proxy(plain.port, "user:other") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:hush@{proxy.address}")
        with pytest.raises(ProxyConnectionError) as raised:
            make_s3_client(settings, attempts=1).list_buckets()
        error = store_error(raised.value, "s3://bucket", settings, "bucket")
        assert isinstance(error, Unreachable)
        assert f"proxy http://{proxy.address}" in str(error)
        assert "hush" not in str(error)


def test_uploads_go_directly_to_a_network_of_no_proxy(
    plain: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    settings = resolve_s3_settings({**environment_of(plain), "AWS_ENDPOINT_URL": "http://10.1.2.3:9000"})
    client = make_s3_client(settings, attempts=1)
    assert client.meta.config.proxies == {}
