"""A model served from a plain web server, over TLS with a private authority and a token."""

from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from tests.e2e.serving import run_to_its_end, serving
from tests.static_server import static_server

TOKEN = "a-token-that-nobody-may-see"


@pytest.mark.timeout(240)
def test_a_model_on_a_static_https_server_is_served_as_from_a_folder(
    tiny_folder: Path, loopback_tls: Tls
) -> None:
    flags = ["--device", "cpu", "--max-total-tokens", "256"]
    with serving("--model-path", str(tiny_folder), *flags, environ={}) as local:
        expected = local.complete("ab", max_tokens=8)
    with static_server(tiny_folder.parent, loopback_tls) as server:
        server.token = TOKEN
        environ = {"SSL_CERT_FILE": str(loopback_tls.certificate), "HEADRACE_HTTP_TOKEN": TOKEN}
        with serving("--model-path", f"{server.url}/{tiny_folder.name}/", *flags, environ=environ) as running:
            assert running.complete("ab", max_tokens=8) == expected
            assert TOKEN not in running.text()
        size = sum(path.stat().st_size for path in tiny_folder.iterdir())
        assert server.bytes_sent < 1.02 * size + (1 << 20)


@pytest.mark.timeout(120)
def test_only_the_flag_lets_an_unknown_certificate_pass_and_it_warns(
    tmp_path: Path, loopback_tls: Tls
) -> None:
    with static_server(tmp_path, loopback_tls) as server:
        ended = run_to_its_end("--model-path", f"{server.url}/m", environ={})
        assert "is not trusted by" in ended.error and "NOT checked" not in ended.output
        assert server.asked == []
        ended = run_to_its_end("--model-path", f"{server.url}/m", "--insecure-tls", environ={})
        assert "None of config.json" in ended.error
        assert ended.output.count("NOT checked") == 1
