"""The loader's settings: the flag's keys, else Run:ai's variables."""

from pathlib import Path

import pytest

from headrace.engine.loading.load_settings import load_settings
from headrace.ipc.options import LoadConfig
from headrace.stream.variables import BadSetting, StreamSettings
from tests.engine.harness import environment, start_engine

VARIABLES = {
    "RUNAI_STREAMER_CONCURRENCY": "5",
    "RUNAI_STREAMER_CHUNK_BYTESIZE": "2000000",
    "RUNAI_STREAMER_MEMORY_LIMIT": "3000000",
}


def test_variables_count_where_the_flag_says_nothing() -> None:
    assert load_settings(LoadConfig(), VARIABLES) == StreamSettings(5, 2_000_000, 3_000_000)
    assert load_settings(LoadConfig(), {}) == StreamSettings()


def test_the_flags_keys_win() -> None:
    own = LoadConfig(concurrency=7, memory_limit=0)
    assert load_settings(own, VARIABLES) == StreamSettings(7, 2_000_000, 0)


def test_a_bad_variable_ends_the_start_with_its_name_before_anything_is_listed(tmp_path: Path) -> None:
    with (
        environment({"RUNAI_STREAMER_CONCURRENCY": "lots"}),
        pytest.raises(BadSetting, match="RUNAI_STREAMER_CONCURRENCY is 'lots'"),
    ):
        start_engine(str(tmp_path))
