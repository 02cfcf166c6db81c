"""Buckets in host names, access points and requests without a signature, judged by a real store.

No resolver knows the hosts' names: a forward proxy takes them to the store, as it would in a data centre.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from headrace.demo.identity import Identity, Tls
from headrace.demo.store import SeaweedStore, start_store
from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.errors import AccessDenied, BadSignature, NoCredentials, TlsError
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.store.upload.plan import find_files
from headrace.store.upload.upload import upload_files
from tests.store.forward_proxy import forward_proxy

DOMAIN = "s3.test"
ANYBODY = Identity("anonymous", "", "", ("Read:open", "List:open"))
ACCESS_POINT = "arn:aws:s3:us-east-1:123456789012:accesspoint:models"
NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedStore]:
    folder = tmp_path_factory.mktemp("virtual")
    with start_store(folder, identities=[ANYBODY], domain=DOMAIN) as store:
        client = make_s3_client(resolve_s3_settings(store.environment()), attempts=1)
        for bucket in ("open", "closed", "dotted.name", "models-123456789012"):
            client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key="m/config.json", Body=bucket.encode())
        yield store


@pytest.fixture
def virtual(weed: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Settings]:
    """Settings with the bucket in the host's name."""
    port = weed.endpoint_url.rpartition(":")[2]
    with forward_proxy(int(port)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        yield resolve_s3_settings(
            {
                **weed.environment(),
                "AWS_ENDPOINT_URL": f"http://{DOMAIN}:{port}",
                "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1",
            }
        )


def content(uri: str, settings: S3Settings) -> bytes:
    store = S3Store(parse_source(uri), settings)
    (item,) = store.list().objects
    return read_whole(store.open_reader(), item)


@pytest.mark.parametrize("bucket", ["closed", "dotted.name"])
def test_a_bucket_in_the_hosts_name_is_read(bucket: str, virtual: S3Settings) -> None:
    assert virtual.address_of(bucket).path == "/"
    assert content(f"s3://{bucket}/m", virtual) == bucket.encode()


def test_an_access_point_is_read_by_its_arn(virtual: S3Settings) -> None:
    assert content(f"s3://{ACCESS_POINT}/m", virtual) == b"models-123456789012"


@pytest.mark.parametrize("bucket", ["closed", ACCESS_POINT])
def test_what_pushes_writes_where_is_read(bucket: str, virtual: S3Settings, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("pushed")
    uri = f"s3://{bucket}/pushed"
    upload_files(find_files(tmp_path).files, parse_source(uri), virtual)
    assert content(uri, virtual) == b"pushed"


def without_keys(weed: SeaweedStore, **variables: str) -> S3Settings:
    return resolve_s3_settings({**weed.environment(), **NO_KEYS, **variables})


@pytest.mark.parametrize("variable", ["HEADRACE_S3_ANONYMOUS", "RUNAI_STREAMER_S3_UNSIGNED"])
def test_an_open_bucket_is_read_without_a_signature_when_that_is_asked_for(
    variable: str, weed: SeaweedStore
) -> None:
    settings = resolve_s3_settings({**weed.environment(), variable: "1"})
    assert content("s3://open/m", settings) == b"open"
    told = {setting.name: setting for setting in S3Store(parse_source("s3://open"), settings).describe()}
    assert (told["principal"].value, told["principal"].origin) == ("nobody", variable)


def test_a_closed_bucket_is_not_read_without_a_signature(weed: SeaweedStore) -> None:
    settings = resolve_s3_settings({**weed.environment(), "HEADRACE_S3_ANONYMOUS": "1"})
    with pytest.raises(AccessDenied, match="without credentials") as caught:
        content("s3://closed/m", settings)
    assert "Unset HEADRACE_S3_ANONYMOUS" in caught.value.remedy


def test_an_open_bucket_is_read_where_there_are_no_credentials_at_all_and_that_is_said(
    weed: SeaweedStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headrace.store"):
        assert content("s3://open/m", without_keys(weed)) == b"open"
    assert "s3://open/m is read without credentials: none were found." in caplog.messages


def test_a_closed_bucket_without_credentials_is_told_as_missing_credentials(weed: SeaweedStore) -> None:
    with pytest.raises(NoCredentials, match="without any the bucket does not answer") as caught:
        content("s3://closed/m", without_keys(weed))
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_a_signature_that_is_refused_is_never_left_away(weed: SeaweedStore) -> None:
    nobody = {"AWS_ACCESS_KEY_ID": "AKUNKNOWN0000000", "AWS_SECRET_ACCESS_KEY": "unknown"}
    with pytest.raises(BadSignature):
        content("s3://open/m", resolve_s3_settings({**weed.environment(), **nobody}))


def test_a_push_without_credentials_is_refused_before_anything_is_sent(
    weed: SeaweedStore, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NoCredentials, match="No AWS credentials were found"):
        upload_files(find_files(tmp_path).files, parse_source("s3://open/x"), without_keys(weed))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedStore]:
    """A store whose certificate is of an authority of its own, for one label before the domain."""
    folder = tmp_path_factory.mktemp("virtual-tls")
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert(DOMAIN, f"*.{DOMAIN}", "127.0.0.1")
    for pem in (*certificate.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(str(tls.certificate), append=True)
    certificate.private_key_pem.write_to_path(str(tls.key))
    with start_store(folder / "data", tls=tls, domain=DOMAIN) as store:
        client = make_s3_client(resolve_s3_settings(store.environment()), attempts=1)
        for bucket in ("closed", "dotted.name"):
            client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key="m/config.json", Body=bucket.encode())
        yield store


@pytest.fixture
def virtual_tls(secure: SeaweedStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Variables with the bucket in the host's name, over https."""
    port = secure.endpoint_url.rpartition(":")[2]
    with forward_proxy(int(port)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        yield {
            **secure.environment(),
            "AWS_ENDPOINT_URL": f"https://{DOMAIN}:{port}",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1",
        }


@pytest.mark.parametrize(("bucket", "path"), [("closed", "/"), ("dotted.name", "/dotted.name/")])
def test_over_tls_a_bucket_is_in_the_hosts_name_unless_it_has_a_dot(
    bucket: str, path: str, virtual_tls: dict[str, str]
) -> None:
    settings = resolve_s3_settings(virtual_tls)
    assert settings.address_of(bucket).path == path
    assert content(f"s3://{bucket}/m", settings) == bucket.encode()


def test_an_authority_that_is_not_known_is_told_with_the_buckets_host_and_whom_we_believe(
    virtual_tls: dict[str, str],
) -> None:
    settings = resolve_s3_settings({**virtual_tls, "AWS_CA_BUNDLE": ""})
    with pytest.raises(TlsError, match=rf"certificate of closed\.{DOMAIN} is not trusted by /") as caught:
        content("s3://closed/m", settings)
    assert "AWS_CA_BUNDLE" in caught.value.remedy
