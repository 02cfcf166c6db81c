"""Medians, spreads and ratios of measurements."""

import dataclasses

import pytest

from headrace.bench.report import Spread, ratios, spread, summarize, table
from headrace.bench.scene import Measurement

GB = 10**9
RUN = Measurement(
    wall_s=2.0,
    user_s=0.25,
    system_s=0.75,
    peak_bytes=GB + (10 << 20),
    tensor_bytes=GB,
    tensors=3,
    first_tensor_s=0.5,
    requests=100,
    digest="d",
    facts={"retries": 2},
)


def runs_of(*walls_s: float) -> list[Measurement]:
    return [dataclasses.replace(RUN, wall_s=wall_s) for wall_s in walls_s]


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_a_summary_counts_per_gigabyte_of_the_objects() -> None:
    summary = summarize(runs_of(2.0, 4.0, 8.0), 2 * GB)
    assert summary.gb_per_s == Spread(0.5, 0.25, 1.0)
    assert summary.cpu_s_per_gb.median == 0.5
    assert (summary.user_s_per_gb, summary.system_s_per_gb) == (0.125, 0.375)
    assert summary.over_bytes.median == 10 << 20
    assert summary.first_tensor_s == Spread(0.5, 0.5, 0.5)
    assert summary.requests == Spread(100, 100, 100)
    assert summary.facts == {"retries": 2}


def test_what_a_loader_does_not_tell_is_not_made_up() -> None:
    summary = summarize([dataclasses.replace(RUN, first_tensor_s=None, requests=None)], GB)
    assert summary.first_tensor_s is None
    assert summary.requests is None


def test_ratios_are_taken_within_a_round() -> None:
    ours, others = runs_of(1.0, 10.0, 4.0), runs_of(2.0, 5.0, 4.0)
    assert ratios(others, ours, lambda run: run.wall_s) == Spread(1.0, 0.5, 2.0)


def test_there_is_no_ratio_to_nothing() -> None:
    idle = [dataclasses.replace(RUN, user_s=0.0, system_s=0.0)]
    assert ratios([RUN], idle, lambda run: run.cpu_s) is None


def test_rounds_that_are_not_paired_are_a_defect() -> None:
    with pytest.raises(ValueError, match="argument"):
        ratios(runs_of(1.0), runs_of(1.0, 2.0), lambda run: run.wall_s)


def test_the_table_is_aligned_and_compares_with_the_bare_loop() -> None:
    bare = dataclasses.replace(RUN, wall_s=1.0, first_tensor_s=None, requests=None)
    lines = table({"wire": summarize([bare], GB), "headrace": summarize([RUN], GB)}, "wire")
    assert lines == [
        "loader    GB/s             of wire  CPU s/GB  memory over tensors  first tensor  requests",
        "wire      1 (1 – 1)        1.00     1.00      10 MiB               –             –",
        "headrace  0.5 (0.5 – 0.5)  0.50     1.00      10 MiB               0.500 s       100",
    ]
