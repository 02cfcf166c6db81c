"""What a real server tells of itself after real requests."""

import httpx

from headrace.demo.store import SeaweedStore
from tests.e2e.serving import Server, serving, until
from tests.scraping import Scrape

PROMPT = [11] * 40


def scraped(server: Server) -> Scrape:
    """One scrape."""
    return Scrape(server.get("/metrics").text)


def test_a_real_servers_metrics_follow_its_work(tiny_uri: str, seaweed: SeaweedStore) -> None:
    flags = ["--device", "cpu", "--max-total-tokens", "2048", "--enable-metrics"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as server:
        before = scraped(server)
        assert before("ready") == 1
        assert before("load_bytes_total") == before("load_size_bytes") > 0
        assert before("startup_phase_seconds", phase="import torch") > 0
        assert 0 <= before("startup_phase_hidden_ratio", phase="import torch") <= 1
        assert before("engine_restarts_total") == 0
        assert before("startup_time_seconds") > before("weight_load_duration_seconds") > 0
        assert before("max_total_num_tokens") == before("kv_available_tokens") == 2048
        assert before("process_resident_memory_bytes", process="engine") > 50_000_000
        assert before("generation_tokens_total") == before("prompt_tokens_total") == 0

        for _ in range(2):
            server.complete(PROMPT, max_tokens=8, ignore_eos=True)
        after = scraped(server)
        assert after("prompt_tokens_total") == 2 * len(PROMPT)
        assert after("generation_tokens_total") == 2 * 8
        assert after("cached_tokens_total") == len(PROMPT) // 16 * 16
        assert after("num_requests_total", route="/v1/completions", outcome="finished") == 2
        assert after("inter_token_latency_seconds_count") == 2 * 7
        # The second answer's end is told before its last token.
        assert after("num_running_reqs") == after("num_used_tokens") == 0
        assert after("kv_evictable_tokens") >= len(PROMPT) // 16 * 16
        assert after("kv_available_tokens") + after("kv_evictable_tokens") == 2048


def test_work_under_way_is_seen_and_so_is_its_end(tiny_uri: str, seaweed: SeaweedStore) -> None:
    flags = ["--device", "cpu", "--max-running-requests", "1"]
    body = {
        "prompt": PROMPT,
        "max_tokens": 20_000,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "n": 2,
    }
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as server:
        with httpx.stream("POST", server.url + "/v1/completions", json=body, trust_env=False) as response:
            lines = response.iter_lines()  # whose end would be that of the connection
            next(lines)
            until(lambda: scraped(server)("num_queue_reqs") == 1, "one choice that waits")
            busy = scraped(server)
            assert busy("num_running_reqs") == 1
            assert busy("num_used_tokens") >= len(PROMPT)
            assert 0 < busy("token_usage") < 1
        until(lambda: scraped(server)("num_running_reqs") == 0, "an engine that has forgotten both")
        assert scraped(server)("num_queue_reqs") == scraped(server)("num_used_tokens") == 0
        assert scraped(server)("num_requests_total", route="/v1/completions", outcome="aborted") == 1
