"""az://, abfs:// and abfss://: which account, container and key they name, and what they may not hold."""

import pytest

from headrace.source.object_uri import parse_object
from headrace.source.uri import BadSource, parse_source

HOST = "acct.blob.core.windows.net"


@pytest.mark.parametrize(
    ("text", "host", "container", "prefix"),
    [
        ("az://models", "", "models", ""),
        ("az://models/", "", "models", ""),
        ("AZ://models/a/b/", "", "models", "a/b"),
        ("az://models/a//b", "", "models", "a//b"),
        ("az://$root/a", "", "$root", "a"),
        (f"az://{HOST}/models/a", HOST, "models", "a"),
        (f"az://{HOST}/models", HOST, "models", ""),
        ("az://ACCT.Blob.core.windows.net/models", HOST, "models", ""),
        ("abfs://models/a", "", "models", "a"),
        ("abfs://models@acct.dfs.core.windows.net/a", HOST, "models", "a"),
        ("abfss://models@acct.dfs.core.windows.net/a/b", HOST, "models", "a/b"),
        ("az://models@acct.blob.core.windows.net/a", HOST, "models", "a"),
        ("az://acct-secondary.blob.core.windows.net/m", "acct-secondary.blob.core.windows.net", "m", ""),
        ("az://acct.z12.blob.storage.azure.net/m/a", "acct.z12.blob.storage.azure.net", "m", "a"),
        ("abfss://m@acct.dfs.core.chinacloudapi.cn/a", "acct.blob.core.chinacloudapi.cn", "m", "a"),
    ],
)
def test_a_uri_names_host_container_and_prefix(text: str, host: str, container: str, prefix: str) -> None:
    source = parse_source(text)
    assert (source.scheme, source.host, source.bucket, source.prefix) == ("az", host, container, prefix)


def test_the_canonical_name_holds_the_account_where_it_is_named() -> None:
    assert parse_source("abfss://models@acct.dfs.core.windows.net/a/").uri == f"az://{HOST}/models/a"
    assert parse_source("az://models/a").uri_of("x y") == "az://models/a/x y"


def test_a_canonical_name_reads_as_itself() -> None:
    source = parse_source("abfss://models@acct.dfs.core.windows.net/a/")
    again = parse_source(source.uri)
    assert (again.uri, again.host, again.bucket, again.prefix) == (
        source.uri,
        source.host,
        source.bucket,
        source.prefix,
    )


def test_an_object_is_named_by_its_folder_and_name() -> None:
    folder, name = parse_object("abfss://models@acct.dfs.core.windows.net/a/model.safetensors")
    assert (folder.host, folder.bucket, folder.prefix, name) == (HOST, "models", "a", "model.safetensors")
    assert folder.text == "abfss://models@acct.dfs.core.windows.net/a"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("az://", "names no container"),
        (f"az://{HOST}", "names no container"),
        ("az://Models/a", "no container's name has"),
        ("az://under_score/a", "no container's name has"),
        ("az://models/a/../b", "holds . or .."),
        ("az://models/a\nb", "line break"),
        ("az://models/" + "x" * 1025, "too long"),
        ("az://data.example.com/models", "not the host of a storage account"),
        ("az://127.0.0.1:10000/models", "not the host of a storage account"),
    ],
)
def test_what_cannot_be_a_place_is_told(text: str, why: str) -> None:
    with pytest.raises(BadSource, match=why):
        parse_source(text)


@pytest.mark.parametrize(
    "text",
    [
        "az://models/a?sv=2021-12-02&sig=SECRET%3D",
        "az://models?sig=SECRET",
        "az://SECRET:key@acct.blob.core.windows.net/a",
        "az://SECRET==@acct.blob.core.windows.net/models",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadSource) as caught:
        parse_source(text)
    assert "SECRET" not in str(caught.value)
    assert "AZURE_STORAGE_" in str(caught.value)
