"""From the name that a user gives to the objects that each loader is given, in the form that it understands."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from headrace.bench.scene import Object, Scene
from headrace.store.errors import Unsupported
from headrace.store.http.trust import resolve_trust

if TYPE_CHECKING:
    from headrace.store.s3.address import S3Address
    from headrace.store.s3.settings import S3Settings


@dataclass(frozen=True, slots=True)
class Target:
    """What is loaded.

    Attributes:
        scene: of any run; the loader is still to be filled in.
        kind: "file", "s3" or "web".
        peer_environ: variables for loaders that find their store by AWS's; they hold secrets.
    """

    scene: Scene
    kind: str
    peer_environ: Mapping[str, str]


def find_target(text: str) -> Target:
    """The safetensors of a folder, or one object whose name ends in .safetensors; their headers are proved.

    Raises HeadraceError: the name, the store or the files are not as they must be.
    """
    from headrace.store.s3.store import S3Store
    from headrace.stream.library.opening import open_model

    opened = open_model(text, None)
    for reader in opened.readers:
        reader.close()
    store, items = opened.store, [shard.item for shard in opened.shards]
    source = store.source
    if source.scheme == "file":
        files = [Object(item.key, item.size_bytes, path=item.key) for item in items]
        return Target(Scene("", tuple(files)), "file", {})
    if isinstance(store, S3Store):
        settings = store.settings
        address = settings.address_of(source.bucket)  # after the listing, which may have found another region
        in_bucket = [_in_bucket(source.bucket, item.key, item.size_bytes, address) for item in items]
        scene = Scene(
            "",
            tuple(in_bucket),
            signed=True,
            endpoint_url=address.endpoint_url,
            path_style=address.path != "/",
            ca_bundle=settings.trust.ca_bundle or _system_bundle(),
        )
        return Target(scene, "s3", _aws_variables(settings, address, scene))
    if not source.is_web:
        raise Unsupported(
            source.uri,
            f"Loading from {source.scheme}:// is not measured: other loaders are not given it, nor is the bare wire.",
            remedy="Measure s3://, https:// or a folder.",
        )
    query = f"?{source.query}" if source.query else ""
    web = [_on_the_web(source.uri_of(item.name) + query, item.size_bytes) for item in items]
    scene = Scene(
        "",
        tuple(web),
        endpoint_url=f"{source.scheme}://{source.bucket}",
        ca_bundle=resolve_trust(os.environ).ca_bundle or _system_bundle(),
    )
    return Target(scene, "web", _variables_of_no_one(scene))


def scene_for(target: Target, loader: str, connections: int | None = None) -> Scene:
    """The scene of one loader's runs."""
    return replace(target.scene, loader=loader, connections=connections)


def _in_bucket(bucket: str, key: str, size_bytes: int, address: "S3Address") -> Object:
    uri = f"s3://{bucket}/{key}"
    url = f"{address.origin}{address.path}{quote(key, safe='/-._~')}"
    return Object(uri, size_bytes, url=url, s3_uri=uri)


def _on_the_web(url: str, size_bytes: int) -> Object:
    """The first folder of the path is the bucket for those who need one: its requests for a path are the same."""
    path = unquote(urlsplit(url).path)
    return Object(url, size_bytes, url=url, s3_uri=f"s3:/{path}" if path.count("/") > 1 else "")


def _aws_variables(settings: "S3Settings", address: "S3Address", scene: Scene) -> dict[str, str]:
    credentials = settings.frozen_credentials()
    variables = {
        "AWS_ACCESS_KEY_ID": credentials.access_key or "",
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key or "",
        "AWS_SESSION_TOKEN": credentials.token or "",
        "AWS_REGION": address.region,
        "AWS_DEFAULT_REGION": address.region,
        "AWS_ENDPOINT_URL": address.endpoint_url,
        "AWS_CA_BUNDLE": scene.ca_bundle or "",
        "AWS_EC2_METADATA_DISABLED": os.environ.get("AWS_EC2_METADATA_DISABLED", "true"),
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0" if scene.path_style else "1",
    }
    return {name: value for name, value in variables.items() if value}


def _variables_of_no_one(scene: Scene) -> dict[str, str]:
    """For a plain web server, which does not look at signatures."""
    variables = {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": scene.endpoint_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    return variables | ({"AWS_CA_BUNDLE": scene.ca_bundle} if scene.ca_bundle else {})


def _system_bundle() -> str | None:
    """What OpenSSL takes instead of the system's certificates; peers have to be told."""
    return os.environ.get("SSL_CERT_FILE") or None
