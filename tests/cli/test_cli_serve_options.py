"""What `headrace serve` and `launch_server` make of their command lines."""

import argparse
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from headrace.cli.flags import add_flags
from headrace.cli.parser import Parser, UsageError
from headrace.cli.serve import serve_options
from headrace.errors import HeadraceError
from headrace.ipc.options import DEFAULT_MEM_FRACTION, EngineOptions, LoadConfig
from headrace.server.options import ServeOptions


def parser() -> Parser:
    result = Parser(prog="headrace serve")
    add_flags(result)
    return result


def options(line: str, environ: dict[str, str] | None = None) -> ServeOptions:
    return serve_options(parser().parse_args(shlex.split(line)), environ or {})


def usage_error(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        options(line)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_sequence_that_people_use_with_rustfs_is_understood_literally() -> None:
    got = options(
        "--model-path s3://my-bucket/models/qwen --served-model-name qwen --host 0.0.0.0 --port 30000 "
        "--device cpu --trust-remote-code --disable-overlap-schedule --mem-fraction-static 0.45"
    )
    assert got == ServeOptions(
        engine=EngineOptions(model="s3://my-bucket/models/qwen", device="cpu", mem_fraction_static=0.45),
        served_model_name="qwen",
        host="0.0.0.0",
        port=30000,
        notes=(
            "--trust-remote-code has no effect here: no model family here needs code from the model's folder.",
            "--disable-overlap-schedule has no effect here: the step loop does not overlap batches.",
        ),
    )


def test_every_flag_reaches_its_option(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    got = options(
        f"S3://b/m --tokenizer-path {tmp_path} --chat-template {template} --context-length 100 --dtype float16 "
        "--device cuda --load-format dummy --api-key k --sampling-defaults openai --skip-server-warmup "
        "--log-level DEBUG --max-total-tokens 200 --max-running-requests 3 --chunked-prefill-size 64 "
        "--max-queued-requests 4 --max-prefill-tokens 128 --disable-radix-cache --enable-priority-scheduling "
        "--enable-deterministic-inference --enable-cache-report --schedule-policy fcfs "
        "--page-size 8 --random-seed 7 --shutdown-timeout 2.5 --max-body-size 1M --port 0 "
        "--weight-version v1 --engine-restarts 0 --watchdog-timeout 60 --no-queue-while-loading --queue-timeout 12.5 "
        '--model-loader-extra-config \'{"concurrency": 4, "memory_limit": -1, "distributed": false, '
        '"verify": "require", "restart_on_change": true}\''
    )
    assert got == ServeOptions(
        engine=EngineOptions(
            model="S3://b/m",
            tokenizer_path=str(tmp_path),
            device="cuda",
            dtype="float16",
            load_format="dummy",
            load_config=LoadConfig(
                distributed=False, concurrency=4, memory_limit=-1, verify="require", restart_on_change=True
            ),
            context_length=100,
            max_total_tokens=200,
            max_running_requests=3,
            max_queued_requests=4,
            max_prefill_tokens=128,
            disable_radix_cache=True,
            enable_priority_scheduling=True,
            enable_deterministic_inference=True,
            chunked_prefill_size=64,
            page_size=8,
            random_seed=7,
            skip_server_warmup=True,
            log_level="debug",
        ),
        served_model_name="S3://b/m",
        port=0,
        weight_version="v1",
        api_key="k",
        chat_template=str(template),
        sampling_defaults="openai",
        enable_cache_report=True,
        shutdown_timeout_s=2.5,
        engine_restarts=0,
        watchdog_timeout_s=60,
        queue_while_loading=False,
        queue_timeout_s=12.5,
        max_body_bytes=1 << 20,
        log_level="debug",
    )


def test_without_flags_every_option_has_its_own_default() -> None:
    assert options("s3://b/m") == ServeOptions(
        engine=EngineOptions(model="s3://b/m"), served_model_name="s3://b/m"
    )


@pytest.mark.parametrize(
    "line", ["s3://b/m", "--model s3://b/m", "--model-path=s3://b/m", "--port 1 s3://b/m"]
)
def test_the_model_may_be_named_in_each_of_the_usual_ways(line: str) -> None:
    assert options(line).engine.model == "s3://b/m"


def test_values_may_follow_an_equals_sign() -> None:
    assert options("s3://b/m --port=8000 --tp-size=1").port == 8000


def test_the_parser_sees_all_flags_that_the_options_have() -> None:
    flags = {action.dest for action in parser()._actions}
    renamed = {"load_config": "model_loader_extra_config"}
    renamed |= {"shutdown_timeout_s": "shutdown_timeout", "max_body_bytes": "max_body_size"}
    renamed |= {"watchdog_timeout_s": "watchdog_timeout", "queue_timeout_s": "queue_timeout"}
    fields = {field.name for field in msgspec.structs.fields(EngineOptions)}
    fields |= {field.name for field in msgspec.structs.fields(ServeOptions)} - {"engine", "notes"}
    assert {renamed.get(name, name) for name in fields} <= flags


def test_the_defaults_in_the_help_are_the_options_own() -> None:
    defaults = {f.name: f.default for f in msgspec.structs.fields(EngineOptions)}
    defaults |= {f.name: f.default for f in msgspec.structs.fields(ServeOptions)}
    defaults |= {"shutdown_timeout": 30, "max_body_size": "16M", "mem_fraction_static": DEFAULT_MEM_FRACTION}
    defaults |= {"watchdog_timeout": 300, "queue_timeout": 600}
    assert defaults["shutdown_timeout_s"] == 30
    assert (defaults["watchdog_timeout_s"], defaults["queue_timeout_s"]) == (300, 600)
    assert defaults["max_body_bytes"] == 16 << 20
    checked = 0
    for action in parser()._actions:
        for said in re.findall(r"default: ([\w.]+)[,;)]", action.help or ""):
            if defaults.get(action.dest) is not None:
                assert said == str(defaults[action.dest]), action.dest
                checked += 1
    assert checked >= 12


def test_no_model_is_an_error() -> None:
    with pytest.raises(UsageError, match="No model is named"):
        options("--port 1")


def test_two_models_are_an_error() -> None:
    with pytest.raises(UsageError, match="two models"):
        options("s3://b/m --model-path s3://b/n")


def test_a_second_operand_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'s3://b/n' is one operand too many" in usage_error("s3://b/m s3://b/n", capsys)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("az://host.example/b/m", "not the host of a storage account"),
        ("gs://", "names no bucket"),
        ("hf://org", "does not name a repository"),
        ("https://user:word@host/m", "user name or password"),
        ("org/name/m", "There is no folder org/name/m"),
        ("s3://", "names no bucket"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_anything_starts(uri: str, said: str) -> None:
    with pytest.raises(HeadraceError, match=said):
        options(uri)


def test_a_tokenizer_path_is_checked_like_a_model() -> None:
    with pytest.raises(HeadraceError, match=r"ftp:// is not a scheme"):
        options("s3://b/m --tokenizer-path ftp://b/t")


@pytest.mark.parametrize(
    "flag",
    [
        "--port -1",
        "--port 65536",
        "--port http",
        "--mem-fraction-static 0",
        "--mem-fraction-static 1.01",
        "--mem-fraction-static nan",
        "--mem-fraction-static half",
        "--context-length 0",
        "--max-total-tokens 0",
        "--max-running-requests 0",
        "--max-queued-requests 0",
        "--max-prefill-tokens 0",
        "--chunked-prefill-size 0",
        "--chunked-prefill-size -2",
        "--page-size 0",
        "--random-seed -1",
        "--random-seed 9223372036854775808",
        "--shutdown-timeout -1",
        "--engine-restarts -1",
        "--watchdog-timeout never",
        "--shutdown-timeout inf",
        "--max-body-size 0",
        "--max-body-size 1X",
        "--max-body-size -5",
        "--max-body-size ''",
        "--dtype int8",
        "--device tpu",
        "--load-format gguf",
        "--log-level loud",
        "--sampling-defaults vllm",
        "--host ''",
        "--served-model-name ' '",
    ],
)
def test_a_value_out_of_its_range_is_named_with_its_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"argument {flag.split()[0]}" in usage_error(f"s3://b/m {flag}", capsys)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("4k", 4096), ("16M", 16 << 20), ("16MiB", 16 << 20), ("2G", 2 << 30)]
)
def test_body_sizes_may_have_binary_units(text: str, size: int) -> None:
    assert options(f"s3://b/m --max-body-size {text}").max_body_bytes == size


@pytest.mark.parametrize(("said", "meant"), [("half", "float16"), ("float", "float32"), ("auto", "auto")])
def test_sglang_s_short_names_of_number_formats_are_understood(said: str, meant: str) -> None:
    assert options(f"s3://b/m --dtype {said}").engine.dtype == meant


def test_a_chunk_size_of_minus_one_is_noted_and_leaves_the_default() -> None:
    got = options("s3://b/m --chunked-prefill-size -1")
    assert got.engine.chunked_prefill_size == EngineOptions(model="").chunked_prefill_size
    assert [note for note in got.notes if note.startswith("--chunked-prefill-size -1 has no effect here")]


def test_the_api_key_may_come_from_the_environment() -> None:
    assert options("s3://b/m", {"HEADRACE_API_KEY": "from-env"}).api_key == "from-env"


def test_a_key_on_the_command_line_goes_before_the_environment_s() -> None:
    assert options("s3://b/m --api-key flag", {"HEADRACE_API_KEY": "from-env"}).api_key == "flag"


def test_an_empty_variable_means_no_key() -> None:
    assert options("s3://b/m", {"HEADRACE_API_KEY": ""}).api_key is None


@pytest.mark.parametrize("line", ["--api-key ''", "--api-key 'geheim wort'", "--api-key geheimé"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        options(f"s3://b/m {line}")
    assert "--api-key" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_the_api_key_is_not_among_what_the_engine_is_told() -> None:
    assert b"topsecret" not in msgspec.json.encode(options("s3://b/m --api-key topsecret").engine)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object, not \\[\\]"),
        ("null", "must be a JSON object, not null"),
        ('{"threads": 4}', 'unknown key "threads"'),
        ('{"concurrency": true}', '"concurrency" must be a whole number of at least 1, not true'),
        ('{"concurrency": 0}', '"concurrency" must be a whole number of at least 1, not 0'),
        ('{"concurrency": 1.5}', '"concurrency" must be .*, not 1.5'),
        ('{"concurrency": "4"}', '"concurrency" must be .*, not "4"'),
        ('{"concurrency": null}', '"concurrency" must be .*, not null'),
        ('{"memory_limit": -2}', '"memory_limit" must be a whole number of at least -1, not -2'),
        ('{"distributed": 1}', '"distributed" must be true or false, not 1'),
        ('{"verify": "always"}', '"verify" must be "manifest", "auto", "require" or "off", not "always"'),
        ('{"verify": true}', '"verify" must be "manifest", "auto", "require" or "off", not true'),
        ('{"verify": ["off"]}', '"verify" must be .*, not \\["off"\\]'),
        ('{"restart_on_change": 1}', '"restart_on_change" must be true or false, not 1'),
    ],
)
def test_a_wrong_loader_config_is_refused_by_key(config: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        options(f"s3://b/m --model-loader-extra-config {shlex.quote(config)}")
    for key in ("distributed (true or false)", "concurrency (a whole number", "memory_limit (a whole number"):
        assert key in refused.value.remedy


def test_distributed_loading_is_noted_as_without_effect() -> None:
    got = options("""s3://b/m --model-loader-extra-config '{"distributed": true}'""")
    assert got.engine.load_config.distributed is True
    assert got.notes == (
        '"distributed" in --model-loader-extra-config has no effect here: there is one rank.',
    )


def test_names_of_flags_may_not_be_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --context-length?" in usage_error("s3://b/m --context-len 5", capsys)


def test_an_unknown_flag_is_found_before_its_value_is_taken_for_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = usage_error("--modle-path s3://b/m", capsys)
    assert "--modle-path is not a flag of `headrace serve`; did you mean --model-path?" in said


def test_an_unknown_flag_without_a_near_match_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    said = usage_error("s3://b/m --zzz", capsys)
    assert "did you mean" not in said
    assert "`headrace serve --help` lists" in said


def test_an_unknown_flag_with_an_equals_sign_is_named_without_its_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = usage_error("s3://b/m --api-kee=hidden-value", capsys)
    assert "did you mean --api-key?" in said
    assert "hidden-value" not in said


def test_the_parser_is_the_same_for_both_commands() -> None:
    from headrace import launch_server
    from headrace.cli import serve

    assert launch_server.serve is serve
    assert isinstance(parser().parse_args(["s3://b/m"]), argparse.Namespace)


def test_a_revision_is_one_of_the_hubs_model_and_not_of_its_served_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = options("--model-path org/name --revision feature/x")
    assert got.engine.model == "org/name@feature%2Fx"
    assert got.served_model_name == "org/name"


def test_a_revision_of_what_has_none_is_refused() -> None:
    with pytest.raises(HeadraceError, match="s3://bucket/qwen is no model on the Hugging Face hub"):
        options("s3://bucket/qwen --revision main")
