"""What /metrics says after real requests to a scripted engine."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import msgspec
import pytest
from byte_model import ids_of, model_info
from front_harness import OPTIONS, running_front
from scripted_engine import READY, refuse, say, silent
from test_server_loading import ACCEPTING
from test_server_weights import RELEASE, UPDATE, answered

import headrace
from headrace.ipc.messages import (
    Abort,
    EngineLoad,
    Generate,
    LoadFailed,
    LoadProgress,
    SamplingParams,
    TokenOutput,
    WeightsAnswer,
)
from headrace.server.life.fault import EngineFailed
from headrace.server.seen.metrics import Histogram, ServerMetrics
from headrace.server.seen.process_usage import process_usage
from tests.scraping import Scrape, scrape

COMPLETIONS = "/v1/completions"
DOCUMENT = Path(headrace.__file__).parent.parent / "docs" / "operations.md"


def requests(numbers: Scrape, route: str = COMPLETIONS) -> dict[str, float]:
    """Outcome → requests."""
    return {
        labels.partition(",")[0].removeprefix("outcome="): value
        for (name, labels), value in numbers.numbers.items()
        if name == "headrace_num_requests_total" and labels.endswith(f"route={route}")
    }


def test_a_finished_request_is_counted_with_its_tokens() -> None:
    with running_front(say("Hello")) as front:
        for _ in range(2):
            front.complete(prompt="Say it")
        front.chat()
        numbers = scrape(front.http)
        chat_prompt = len(front.engine.wait_for(Generate, 3).input_ids)
    assert numbers("http_responses_total", route=COMPLETIONS, method="POST", status="200") == 2
    assert requests(numbers) == {"finished": 2}
    assert requests(numbers, "/v1/chat/completions") == {"finished": 1}
    assert numbers("prompt_tokens_total") == 2 * len(ids_of("Say it")) + chat_prompt
    assert numbers("generation_tokens_total") == 3 * (len("Hello") + 1)  # and the end-of-sequence id
    assert numbers("finished_choices_total", reason="stop") == 3


def test_an_answer_that_its_limit_ended_has_that_reason() -> None:
    with running_front(say("Hello")) as front:
        front.complete(max_tokens=2)
        assert scrape(front.http)("finished_choices_total", reason="length") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_first_token_and_each_other_token_its_latency(stream: bool) -> None:
    with running_front(say("Hello")) as front:
        front.complete(stream=stream)
        numbers = scrape(front.http)
    assert numbers("time_to_first_token_seconds_count") == 1
    assert numbers("inter_token_latency_seconds_count") == len("Hello")
    assert numbers("e2e_request_latency_seconds_count") == 1
    first, whole = numbers("time_to_first_token_seconds_sum"), numbers("e2e_request_latency_seconds_sum")
    assert 0 < first <= whole


def test_a_histograms_buckets_count_up_to_all_values() -> None:
    with running_front(say("Hello")) as front:
        front.complete()
        numbers = scrape(front.http)
    buckets = [
        value
        for (name, _), value in numbers.numbers.items()
        if name == "headrace_inter_token_latency_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert numbers("inter_token_latency_seconds_bucket", le="+Inf") == buckets[-1] == len("Hello")


def test_several_choices_of_a_prompt_count_the_prompt_and_what_the_cache_held_once() -> None:
    with running_front(say("ab", cached_tokens=2)) as front:
        front.complete(prompt=["Say", "Tell me"], n=3)
        numbers = scrape(front.http)
    assert numbers("prompt_tokens_total") == len("Say") + len("Tell me")
    assert numbers("cached_tokens_total") == 2 * 2
    assert numbers("generation_tokens_total") == 6 * 3
    assert numbers("time_to_first_token_seconds_count") == 1
    assert numbers("inter_token_latency_seconds_count") == 6 * 2
    assert requests(numbers) == {"finished": 1}


def test_what_cannot_be_answered_is_refused_and_not_failed() -> None:
    with running_front(refuse(503, "queue_full", "Full.")) as front:
        assert front.complete(temperature=-1).status_code == 400
        assert front.complete(model="other").status_code == 404
        assert front.complete().status_code == 503
        numbers = scrape(front.http)
    assert requests(numbers) == {"refused": 3}
    assert numbers("http_responses_total", route=COMPLETIONS, method="POST", status="404") == 1
    assert numbers("e2e_request_latency_seconds_count") == 0
    assert numbers("prompt_tokens_total") == 0


def test_an_engines_error_is_a_failure() -> None:
    with running_front(refuse(500, "engine_error", "Broken.")) as front:
        assert front.complete().status_code == 500
        assert requests(scrape(front.http)) == {"failed": 1}


def test_a_stream_that_breaks_off_is_a_failure_whatever_its_status() -> None:
    with running_front(refuse(500, "engine_error", "Broken.", after="Hel")) as front:
        assert front.complete(stream=True).status_code == 200
        numbers = scrape(front.http)
    assert requests(numbers) == {"failed": 1}
    assert numbers("http_responses_total", route=COMPLETIONS, method="POST", status="200") == 1
    assert numbers("generation_tokens_total") == len("Hel")


def test_a_client_that_leaves_is_an_aborted_request() -> None:
    with running_front(silent) as front:
        with pytest.raises(httpx.ReadTimeout):
            front.http.post(COMPLETIONS, json={"prompt": "Say"}, timeout=0.2)
        front.engine.wait_for(Abort)
        numbers = scrape(front.http)
        while not requests(numbers):
            numbers = scrape(front.http)
    assert requests(numbers) == {"aborted": 1}
    assert numbers("http_responses_total", route=COMPLETIONS, method="POST", status="499") == 1
    assert numbers("http_requests_active") == 1  # the scrape itself


def test_requests_under_way_are_seen() -> None:
    with running_front(silent) as front:
        thread = threading.Thread(target=front.complete)
        thread.start()
        front.engine.wait_for(Generate)
        assert scrape(front.http)("http_requests_active") == 2
        front.engine.send(LoadFailed("X", "Over."))
        thread.join()


def test_clients_cannot_make_label_values() -> None:
    with running_front() as front:
        front.http.get("/v1/models/some/name")
        front.http.get("/a/path/of/my/own")
        front.http.request("BREW", "/health")
        numbers = scrape(front.http)
    assert numbers("http_responses_total", route="/v1/models/{id}", method="GET", status="404") == 1
    assert numbers("http_responses_total", route="other", method="GET", status="404") == 1
    assert numbers("http_responses_total", route="/health", method="other", status="405") == 1


def test_a_probe_for_a_token_is_no_request_of_a_client() -> None:
    with running_front() as front:
        assert front.http.get("/health_generate").status_code == 200
        numbers = scrape(front.http)
    assert numbers("generation_tokens_total") == 0
    assert numbers("time_to_first_token_seconds_count") == 0
    assert requests(numbers) == {}


def test_the_engines_load_is_shown_as_it_was_told_last() -> None:
    size = READY.max_total_tokens
    with running_front() as front:
        front.engine.send(EngineLoad(9, 9, 9, 9, 9), EngineLoad(3, 2, 256, 1024, 1))
        numbers = scrape(front.http)
        while numbers("num_running_reqs") != 3:
            numbers = scrape(front.http)
    assert numbers("num_queue_reqs") == 2
    assert numbers("retracted_reqs_total") == 1
    assert numbers("num_used_tokens") == 256
    assert numbers("kv_evictable_tokens") == 1024
    assert numbers("kv_available_tokens") == size - 256 - 1024
    assert numbers("token_usage") == 256 / size
    assert numbers("max_total_num_tokens") == size


def test_an_engine_that_is_gone_runs_nothing() -> None:
    with running_front() as front:
        front.engine.send(EngineLoad(3, 2, 256, 1024, 1), LoadFailed("X", "Over."))
        while front.http.get("/health").status_code == 200:
            pass
        numbers = scrape(front.http)
    assert (numbers("num_running_reqs"), numbers("num_queue_reqs"), numbers("ready")) == (0, 0, 0)


def test_a_load_can_be_followed_and_who_waits_for_it_counts_as_queued() -> None:
    with running_front(load=False) as front:
        front.engine.send(LoadProgress("streaming weights", 250, 1000, 3, 2, 8))
        thread = threading.Thread(target=front.complete)
        thread.start()
        numbers = scrape(front.http)
        while (numbers("load_bytes_total"), numbers("num_queue_reqs")) != (250, 1):
            numbers = scrape(front.http)
        assert numbers("ready") == 0
        assert numbers("load_size_bytes") == 1000
        assert numbers("load_retries_total") == 3
        assert numbers("load_hedges_total") == 2
        assert numbers("load_concurrency") == 8
        assert not numbers.has("startup_time_seconds")
        front.engine.load()
        thread.join()
        numbers = scrape(front.http)
    assert numbers("num_queue_reqs") == 0
    assert numbers("time_to_first_token_seconds_count") == 1


def test_choices_that_the_engine_was_sent_while_it_loads_count_as_queued() -> None:
    with running_front(load=False) as front:
        front.engine.send(model_info(), ACCEPTING)
        thread = threading.Thread(target=lambda: front.complete(n=3, temperature=1))
        thread.start()
        numbers = scrape(front.http)
        while numbers("num_queue_reqs") != 3:
            numbers = scrape(front.http)
        assert numbers("ready") == 0
        front.engine.send(READY)
        thread.join()
        assert scrape(front.http)("num_queue_reqs") == 0


def test_the_start_is_told_by_phases_once_it_is_over() -> None:
    with running_front() as front:
        numbers = scrape(front.http)
    assert numbers("ready") == 1
    assert numbers("load_bytes_total") == numbers("load_size_bytes") == READY.bytes_streamed
    assert numbers("load_concurrency") == 0
    # The engine was started a tenth of a second after exec.
    assert numbers("startup_time_seconds") >= 0.6
    assert numbers("startup_phase_seconds", phase="transfer") == pytest.approx(0.3)
    assert numbers("startup_phase_end_seconds", phase="transfer") == pytest.approx(0.5)
    assert numbers("startup_phase_hidden_ratio", phase="warm up") == pytest.approx(0.5)
    assert numbers("startup_phase_seconds", phase="front: tokenizer") > 0
    assert numbers("weight_load_duration_seconds") == pytest.approx(0.3)
    assert numbers("context_len") == 2048
    assert numbers("weight_memory_usage_gb") == 3
    assert numbers("kv_cache_memory_usage_gb") == 0.5


def test_changes_of_weights_are_counted_by_their_outcome() -> None:
    with running_front() as front:
        answered(
            front,
            UPDATE,
            WeightsAnswer(True, "Served.", "s3://bucket/new"),
            {"model_path": "s3://bucket/new"},
        )
        answered(
            front,
            UPDATE,
            WeightsAnswer(False, "Other shapes.", "s3://bucket/new"),
            {"model_path": "s3://b/x"},
            count=2,
        )
        front.loop.call_soon_threadsafe(front.client.weights.begin)
        front.loop.call_soon_threadsafe(front.client.lose, EngineFailed("It was killed."))
        numbers = scrape(front.http)
    outcomes = ("done", "refused", "lost")
    assert [numbers("weight_changes_total", outcome=outcome) for outcome in outcomes] == [1, 1, 1]


def test_memory_that_was_given_back_is_not_taken() -> None:
    with running_front() as front:
        answered(front, RELEASE, WeightsAnswer(True, "Given back.", "s3://bucket/tiny", ("weights",)))
        numbers = scrape(front.http)
        assert (numbers("weight_memory_usage_gb"), numbers("kv_cache_memory_usage_gb")) == (3, 0)
        answered(front, RELEASE, WeightsAnswer(True, "Given back.", "s3://bucket/tiny", ()), count=2)
        assert scrape(front.http)("weight_memory_usage_gb") == 0


def test_a_scraper_needs_no_key() -> None:
    with running_front(options=msgspec.structs.replace(OPTIONS, api_key="key")) as front:
        assert front.complete().status_code == 401
        assert requests(scrape(front.http)) == {"refused": 1}


def test_open_metrics_is_spoken_to_who_asks_for_it() -> None:
    with running_front() as front:
        plain = front.http.get("/metrics")
        asked = front.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert asked.text.endswith("# EOF\n")


def test_each_server_counts_for_itself() -> None:
    with running_front() as first, running_front() as second:
        first.complete()
        assert requests(scrape(first.http)) == {"finished": 1}
        assert requests(scrape(second.http)) == {}


def test_the_memory_and_the_time_of_this_process_are_told() -> None:
    with running_front() as front:
        numbers = scrape(front.http)
    assert numbers("process_resident_memory_bytes", process="front") > 10_000_000
    assert numbers("process_cpu_seconds_total", process="front") > 0


def test_a_process_that_is_gone_has_no_usage() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert process_usage(ended.pid) is None


def test_every_metric_is_in_the_operators_table_and_nothing_else_is() -> None:
    with running_front() as front:
        front.complete()
        found = {
            (
                name,
                family.type,
                tuple(sorted({label for sample in family.samples for label in sample.labels} - {"le"})),
            )
            for name, family in scrape(front.http).families.items()
        }
    rows = re.findall(
        r"^\| `(headrace_\w+)` \| (\w+) \|([^|]*)\|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    told = {
        (
            name.removesuffix("_total") if kind == "counter" else name,
            kind,
            tuple(sorted(re.findall(r"`(\w+)`", labels))),
        )
        for name, kind, labels in rows
    }
    assert told == found


def test_the_library_is_imported_by_the_first_scrape_and_not_by_the_start() -> None:
    code = "import sys, headrace.server.life.front; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_value_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    assert histogram.counts == [2, 4, 1]
    assert histogram.total == 11.5


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    now = 10.0
    metrics = ServerMetrics(clock=lambda: now)
    meter = metrics.of_answer([Generate("r", [1, 2], SamplingParams(max_tokens=5))], 1)
    now = 11.0
    meter.count(TokenOutput("r", (5,)))
    now = 13.0
    meter.count(TokenOutput("r", (6, 7, 8, 9), "length"))
    assert metrics.time_to_first_token.total == 1.0
    assert metrics.inter_token_latency.total == 2.0
    assert sum(metrics.inter_token_latency.counts) == 4
    assert metrics.inter_token_latency.counts[metrics.inter_token_latency.bounds.index(0.5)] == 4
