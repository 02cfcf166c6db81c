"""Medians, ratios, tables and pictures of cold starts."""

import dataclasses
import sys
from pathlib import Path

import pytest

from headrace.bench.cold_start import ColdStart, Phase
from headrace.bench.report import Spread
from headrace.bench.startup_plot import check_plot, draw_start
from headrace.bench.startup_report import (
    median_phases,
    middle_start,
    phases_table,
    ratios_to,
    starts_table,
    summarize_starts,
)
from headrace.errors import HeadraceError

START = ColdStart(
    health_s=0.25,
    ready_s=1.5,
    first_token_s=1.75,
    text="a",
    text_again="a",
    phases=(Phase("transfer", 0.5, 1.25, None), Phase("import torch", 0.5, 1.0, 1.0)),
)
PEER = ColdStart(health_s=None, ready_s=None, first_token_s=7.0, text="a", text_again="a")


def starts_of(*first_tokens_s: float) -> list[ColdStart]:
    return [dataclasses.replace(START, first_token_s=first_token_s) for first_token_s in first_tokens_s]


def test_a_summary_has_the_median_and_the_ends_of_every_figure() -> None:
    summary = summarize_starts(starts_of(1.75, 2.25, 3.25))
    assert summary.first_token_s == Spread(2.25, 1.75, 3.25)
    assert summary.after_last_byte_s == Spread(1.0, 0.5, 2.0)
    assert (summary.first_byte_s, summary.last_byte_s) == (Spread(0.5, 0.5, 0.5), Spread(1.25, 1.25, 1.25))
    assert (summary.health_s, summary.ready_s) == (Spread(0.25, 0.25, 0.25), Spread(1.5, 1.5, 1.5))


def test_what_a_server_does_not_tell_is_not_made_up() -> None:
    summary = summarize_starts([PEER])
    assert summary.health_s is summary.last_byte_s is summary.after_last_byte_s is summary.ready_s is None
    assert summary.phases == ()


def test_one_answer_that_differs_from_the_later_one_is_told() -> None:
    assert summarize_starts([START, START]).same_text
    assert not summarize_starts([START, dataclasses.replace(START, text="b")]).same_text


def test_a_phase_that_comes_twice_is_two_phases() -> None:
    once = dataclasses.replace(START, phases=(Phase("list", 0.0, 1.0, 0.0),))
    twice = dataclasses.replace(START, phases=(Phase("list", 0.0, 2.0, 0.5), Phase("list", 3.0, 4.0, 1.0)))
    assert median_phases([once, twice]) == (Phase("list", 0.0, 1.5, 0.25), Phase("list", 3.0, 4.0, 1.0))


def test_the_start_of_median_length_is_one_of_them() -> None:
    assert middle_start(starts_of(3.0, 1.0, 2.0)).first_token_s == 2.0
    assert middle_start(starts_of(4.0, 1.0, 2.0, 3.0)).first_token_s == 2.0


def test_ratios_are_taken_within_a_round() -> None:
    assert ratios_to(starts_of(1.0, 2.0, 4.0), starts_of(4.0, 2.0, 8.0)) == Spread(2.0, 1.0, 4.0)


def test_the_table_is_aligned_and_leaves_out_what_nobody_tells() -> None:
    both = {"headrace": summarize_starts([START]), "peer": summarize_starts([PEER])}
    assert starts_table(both) == [
        "server    first token         /health             first byte          last byte           ready               "
        "token after last byte",
        "headrace  1.75 (1.75 – 1.75)  0.25 (0.25 – 0.25)  0.50 (0.50 – 0.50)  1.25 (1.25 – 1.25)  1.50 (1.50 – 1.50)  "
        "0.50 (0.50 – 0.50)",
        "peer      7.00 (7.00 – 7.00)  –                   –                   –                   –                   "
        "–",
    ]
    assert starts_table({"peer": summarize_starts([PEER])})[0] == "server  first token"


def test_the_table_of_phases_shows_what_hid() -> None:
    assert phases_table(START.phases) == [
        "phase         start  end   seconds  hidden",
        "transfer      0.50   1.25  0.75     –",
        "import torch  0.50   1.00  0.50     100 %",
    ]


@pytest.mark.parametrize("peers", [{}, {"peer": 7.0, "other": 22.0}])
def test_a_picture_is_drawn(peers: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "start.png"
    check_plot(path)
    draw_start(path, "a title", START, {"headrace": 1.75, **peers})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_names_every_phase(tmp_path: Path) -> None:
    path = tmp_path / "start.svg"
    draw_start(path, "a title", START, {"headrace": 1.75, "peer": 7.0})
    drawn = path.read_text()
    for words in ("transfer", "import torch", "first token, 1.75 s", "peer", "a title"):
        assert f"<!-- {words} -->" in drawn


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("start.xyz", "has no ending that names a kind of picture"),
        ("nowhere/start.png", "There is no folder"),
    ],
)
def test_a_picture_that_could_not_be_written_is_an_error_at_once(
    path: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(HeadraceError, match=sentence):
        check_plot(tmp_path / path)


def test_without_matplotlib_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadraceError, match="needs matplotlib") as raised:
        check_plot(tmp_path / "start.png")
    assert "pip install 'headrace[bench]'" in raised.value.remedy
