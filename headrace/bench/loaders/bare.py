"""The bare limit on the same place: not a loader, nothing is made of the bytes."""

import os
import platform
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from headrace.bench.meter import Loaded
from headrace.bench.scene import Scene
from headrace.bench.wire import Sign, plain_headers, read_all, receive_all
from headrace.store.http.trust import resolve_trust, tls_context

DEFAULT_CONNECTIONS = 4


def versions() -> dict[str, str]:
    """Python's: there is nothing else in it."""
    return {"python": platform.python_version()}


def prepare(scene: Scene) -> Callable[[float], Loaded]:
    """Set up TLS and signing; the load."""
    connections = scene.connections or DEFAULT_CONNECTIONS
    paths = [(item.path, item.size_bytes) for item in scene.objects if item.path]
    urls = [(item.url, item.size_bytes) for item in scene.objects if item.url]
    tls = tls_context(resolve_trust(os.environ, bundle=scene.ca_bundle or ""))
    sign = signer() if scene.signed else plain_headers

    def load(_start: float) -> Loaded:
        if paths:
            view = read_all(paths, connections, scene.limit_bytes)
        else:
            view = receive_all(urls, connections, sign, tls, scene.limit_bytes)
        return Loaded(size_bytes=len(view), facts={"connections": connections})

    return load


def signer() -> Sign:
    """Signs each request as S3 wants it (SigV4), with what the AWS variables say."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    from headrace.store.s3.settings import resolve_s3_settings

    settings = resolve_s3_settings()

    def sign(url: str, byte_range: str) -> Iterable[tuple[str, str]]:
        request = AWSRequest("GET", url, headers={"Host": urlsplit(url).netloc, "Range": byte_range})
        S3SigV4Auth(settings.frozen_credentials(), "s3", settings.region).add_auth(request)
        return [(name, str(value)) for name, value in request.headers.items()]

    return sign
