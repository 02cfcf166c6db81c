"""The front's pure parts: no network, no engine, no clock."""

import asyncio
import json
import os
import signal
import socket
from typing import Any, NoReturn

import msgspec
import pytest
from byte_model import EOS_ID, ids_of, model_info

from headrace.errors import HeadraceError
from headrace.ipc.messages import LoadProgress, TokenOutput
from headrace.server.errors import ApiError
from headrace.server.life.engine_process import exit_sentence
from headrace.server.life.launch import bind, process_age_s
from headrace.server.life.signals import Signals
from headrace.server.openai.checks import check_context
from headrace.server.openai.choice import ChoiceText, Delta
from headrace.server.openai.logprobs import LEAST_LOGPROB, finite
from headrace.server.openai.protocol import CompletionRequest, SamplingRequest
from headrace.server.openai.sampling import SamplingDefaults, model_defaults, resolve
from headrace.server.openai.served_model import build_served_model
from headrace.server.openai.unsupported import COMPLETION_OFF_VALUES, refuse_unsupported
from headrace.server.seen.progress import ProgressMeter
from headrace.text.detokenizer import Detokenizer
from headrace.text.stop_matcher import StopMatcher

MODEL = build_served_model(model_info(), chat_template=None, sampling_defaults="model")


def choice(*stops: str) -> ChoiceText:
    return ChoiceText(Detokenizer(MODEL.tokenizer), StopMatcher(stops))


def output(text: str, **more: Any) -> TokenOutput:
    return TokenOutput("r", tuple(ids_of(text)), **more)


class TestChoiceText:
    def test_an_answer_cut_by_its_length_keeps_every_token(self) -> None:
        state = choice()
        assert state.push(output("ab")) == Delta("ab")
        assert state.push(output("c", finish_reason="length")) == Delta("c", "length")
        assert (state.token_count, state.finished) == (3, True)

    def test_an_incomplete_character_at_the_end_becomes_a_replacement(self) -> None:
        half = TokenOutput("r", tuple(ids_of("é")[:1]), finish_reason="length")
        assert choice().push(half) == Delta("�", "length")

    def test_an_id_that_ends_the_answer_adds_no_text_even_if_it_is_ordinary(self) -> None:
        state = choice()
        a, b = ids_of("ab")
        assert state.push(TokenOutput("r", (a, b), "stop", b)) == Delta("a", "stop", b)
        assert state.token_count == 2

    def test_a_stop_string_wins_over_the_end_that_came_with_it(self) -> None:
        state = choice("b")
        assert state.push(TokenOutput("r", (*ids_of("abc"), EOS_ID), "stop", EOS_ID)) == Delta(
            "a", "stop", "b"
        )
        assert state.token_count == 2

    def test_text_held_for_a_stop_string_comes_with_the_end(self) -> None:
        state = choice("bcd")
        assert state.push(output("ab")) == Delta("a")
        assert state.push(output("c", finish_reason="length")) == Delta("bc", "length")


class TestSamplingDefaults:
    def test_the_files_values_are_taken_and_zero_top_k_means_all(self) -> None:
        assert model_defaults({"temperature": 0.7, "top_k": 0}) == SamplingDefaults(0.7, 1.0, -1)
        assert model_defaults({"min_p": 0.1, "repetition_penalty": 1.1}) == SamplingDefaults(
            min_p=0.1, repetition_penalty=1.1
        )

    def test_what_is_absent_or_null_stays_open_ais(self) -> None:
        assert model_defaults({"top_p": None, "do_sample": False}) == SamplingDefaults()

    @pytest.mark.parametrize(
        "config",
        [
            {"temperature": -1},
            {"top_p": 0},
            {"top_p": "high"},
            {"top_k": 2.5},
            {"top_k": -7},
            {"min_p": 1.5},
            {"repetition_penalty": 0},
        ],
    )
    def test_a_value_that_no_request_might_give_is_an_error_that_names_file_and_way_out(
        self, config: dict[str, object]
    ) -> None:
        with pytest.raises(HeadraceError, match=r"generation_config\.json") as refused:
            model_defaults(config)
        assert next(iter(config)) in refused.value.message
        assert "--sampling-defaults openai" in refused.value.remedy

    def test_the_operator_can_leave_the_file_aside(self) -> None:
        info = model_info(generation_config={"temperature": -1})
        model = build_served_model(info, chat_template=None, sampling_defaults="openai")
        assert model.defaults == SamplingDefaults()


class TestLimits:
    REQUEST = CompletionRequest(prompt="a")

    def test_a_default_limit_stays_within_the_room(self) -> None:
        resolved = resolve(
            self.REQUEST, SamplingDefaults(), prompt_tokens=95, room_tokens=100, default_max_tokens=16
        )
        assert resolved.max_tokens == 5

    def test_without_a_default_the_rest_of_the_room_is_taken(self) -> None:
        resolved = resolve(
            self.REQUEST, SamplingDefaults(), prompt_tokens=10, room_tokens=100, default_max_tokens=None
        )
        assert resolved.max_tokens == 90

    def test_prompt_and_answer_may_fill_the_context_to_the_last_token(self) -> None:
        check_context(99, SamplingRequest(), 100, "prompt")
        check_context(60, SamplingRequest(max_tokens=40), 100, "prompt")
        with pytest.raises(ApiError, match="101 tokens"):
            check_context(60, SamplingRequest(max_tokens=41), 100, "prompt")
        with pytest.raises(ApiError, match="has 100 tokens"):
            check_context(100, SamplingRequest(), 100, "prompt")


class TestUnsupportedFields:
    def test_a_boolean_does_not_pass_for_a_number(self) -> None:
        with pytest.raises(ApiError, match="`length_penalty`"):
            refuse_unsupported({"length_penalty": True}, COMPLETION_OFF_VALUES)
        with pytest.raises(ApiError, match="`no_stop_trim`"):
            refuse_unsupported({"no_stop_trim": 0}, COMPLETION_OFF_VALUES)

    def test_null_asks_for_nothing(self) -> None:
        refuse_unsupported(dict.fromkeys(COMPLETION_OFF_VALUES), COMPLETION_OFF_VALUES)

    def test_a_long_value_is_not_repeated_in_full(self) -> None:
        with pytest.raises(ApiError) as refused:
            refuse_unsupported({"regex": "x" * 10_000}, COMPLETION_OFF_VALUES)
        assert len(refused.value.message) < 200


class TestProgress:
    def test_rate_and_remaining_time_follow_from_bytes_and_clock(self) -> None:
        meter = ProgressMeter()
        meter.add(LoadProgress("streaming weights", 0, 10_000_000_000), 100.0)
        meter.add(LoadProgress("streaming weights", 4_000_000_000, 10_000_000_000), 102.0)
        report = meter.report()
        assert (report.gb_per_s, report.eta_s) == (2.0, 3.0)
        assert meter.line() == "Loading: streaming weights, 4.00 of 10.00 GB (40 %), 2.00 GB/s, 3 s left"

    def test_only_the_last_seconds_count(self) -> None:
        meter = ProgressMeter()
        for second in range(11):
            done = 100_000_000 * second if second < 6 else 500_000_000 + 1_000_000_000 * (second - 5)
            meter.add(LoadProgress("streaming weights", done, 20_000_000_000), float(second))
        assert meter.gb_per_s() == pytest.approx(1.0)

    def test_phases_before_and_after_the_transfer_do_not_slow_it(self) -> None:
        meter = ProgressMeter()
        meter.add(LoadProgress("listing"), 0.0)
        meter.add(LoadProgress("streaming weights", 0, 1_000_000_000), 9.0)
        meter.add(LoadProgress("streaming weights", 1_000_000_000, 1_000_000_000), 10.0)
        meter.add(LoadProgress("warming up", 1_000_000_000, 1_000_000_000), 20.0)
        assert meter.gb_per_s() == pytest.approx(1.0)

    def test_a_phase_without_bytes_is_named_alone(self) -> None:
        assert ProgressMeter().line() == "Loading: starting the engine"
        assert ProgressMeter().bar(80) == "Loading: starting the engine"

    def test_what_went_wrong_is_counted_and_long_times_are_in_minutes(self) -> None:
        meter = ProgressMeter()
        meter.add(LoadProgress("streaming weights", 0, 100_000_000_000), 0.0)
        meter.add(LoadProgress("streaming weights", 1_000_000_000, 100_000_000_000, 1, 3), 1.0)
        assert meter.line().endswith("(1 %), 1.00 GB/s, 1:39 min left, 1 retry, 3 hedges")

    def test_a_bar_shows_the_share_in_the_width_that_there_is(self) -> None:
        meter = ProgressMeter()
        meter.add(LoadProgress("streaming weights", 5_000_000_000, 10_000_000_000), 0.0)
        assert meter.bar(100) == f"Loading: streaming weights [{'#' * 15}{'.' * 15}] 50 %, 5.00 of 10.00 GB"
        assert meter.bar(60) == "Loading: streaming weights [####....] 50 %, 5.00 of 10.00 GB"
        assert meter.bar(52) == "Loading: streaming weights, 5.00 of 10.00 GB (50 %)"
        assert meter.bar(30) == "Loading: 50 %"
        assert all(len(meter.bar(columns)) <= columns for columns in range(1, 120))

    def test_a_whole_load_has_no_time_left(self) -> None:
        meter = ProgressMeter()
        meter.add(LoadProgress("streaming weights", 0, 1_000_000_000), 0.0)
        meter.add(LoadProgress("streaming weights", 1_000_000_000, 1_000_000_000), 1.0)
        assert meter.line() == "Loading: streaming weights, 1.00 of 1.00 GB (100 %), 1.00 GB/s"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(3, "ended with exit code 3"), (-11, "was ended by SIGSEGV"), (-99, "was ended by signal 99")],
)
def test_an_exit_is_told_in_words(code: int, sentence: str) -> None:
    assert exit_sentence(code) == sentence


def test_a_template_given_by_the_operator_must_be_valid() -> None:
    with pytest.raises(HeadraceError, match="Jinja"):
        build_served_model(model_info(), chat_template="{% if %}", sampling_defaults="model")


def test_a_broken_template_of_the_model_leaves_completions_alone() -> None:
    model = build_served_model(model_info(template="{% if %}"), chat_template=None, sampling_defaults="model")
    assert model.template is None
    assert "Jinja" in model.template_problem


def test_files_that_are_not_json_are_named() -> None:
    with pytest.raises(HeadraceError, match=r"generation_config\.json is not a JSON object"):
        build_served_model(
            type(model_info())(
                config=json.dumps({}),
                generation_config="[",
                tokenizer_files=model_info().tokenizer_files,
                context_length=1,
                vocab_size=1,
                eos_token_ids=(),
            ),
            chat_template=None,
            sampling_defaults="model",
        )


def test_a_signal_that_came_before_the_loop_is_told_to_it() -> None:
    def end_at_once(number: int) -> NoReturn:
        raise AssertionError(number)

    signals = Signals(end_at_once)
    try:
        os.kill(os.getpid(), signal.SIGTERM)

        async def wait() -> None:
            told = asyncio.Event()
            signals.attach(asyncio.get_running_loop(), told.set)
            await asyncio.wait_for(told.wait(), 30)

        asyncio.run(wait())
    finally:
        signals.restore()


def test_a_second_signal_before_the_loop_ends_at_once() -> None:
    def end_at_once(number: int) -> NoReturn:
        raise RuntimeError(f"ended by {number}")

    signals = Signals(end_at_once)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(RuntimeError, match=f"ended by {signal.SIGTERM.value}"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signals.restore()


def test_localhost_is_the_address_that_every_client_tries() -> None:
    with bind("localhost", 0) as listener:
        assert listener.family == socket.AF_INET


def test_the_age_of_this_process_is_known() -> None:
    assert 0 < process_age_s() < 24 * 3600


class TestModelFiles:
    def test_tokenizer_files_may_begin_with_a_byte_order_mark(self) -> None:
        info = model_info()
        marked = {name: b"\xef\xbb\xbf" + content for name, content in info.tokenizer_files.items()}
        changed = msgspec.structs.replace(info, tokenizer_files=marked)
        model = build_served_model(changed, chat_template=None, sampling_defaults="model")
        assert model.template is not None
        assert model.tokenizer.encode("a") == ids_of("a")

    def test_a_tokenizer_config_that_is_not_utf_8_is_named(self) -> None:
        info = model_info()
        broken = {**info.tokenizer_files, "tokenizer_config.json": b'{"a": "\xff"}'}
        changed = msgspec.structs.replace(info, tokenizer_files=broken)
        with pytest.raises(HeadraceError, match=r"tokenizer_config\.json"):
            build_served_model(changed, chat_template=None, sampling_defaults="model")


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")])
def test_a_logprob_that_json_has_no_number_for_is_a_very_low_one(logprob: float) -> None:
    assert finite(logprob) == LEAST_LOGPROB
