"""The memory plan is arithmetic, and what its error advises is true."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.engine.memory import (
    LEAST_TOKENS,
    MemoryPlan,
    NotEnoughMemory,
    machine_memory_bytes,
    plan_memory,
    share_bytes,
)

GIB = 1 << 30
ROOMY: dict[str, Any] = {
    "device": "the CPU",
    "total_bytes": 16 * GIB,
    "fraction": 0.5,
    "weights_bytes": 2 * GIB,
    "bytes_per_token": 24_576,
    "context_length": 8192,
    "page_size": 16,
    "max_running_requests": 64,
    "max_total_tokens": None,
}


def plan(**changes: Any) -> MemoryPlan:
    return plan_memory(**{**ROOMY, **changes})


def refusal(**changes: Any) -> NotEnoughMemory:
    with pytest.raises(NotEnoughMemory) as caught:
        plan(**changes)
    return caught.value


def test_the_pool_takes_what_the_share_leaves_in_whole_pages() -> None:
    tokens = plan().pool_tokens
    rest = 6 * GIB
    assert tokens % 16 == 0
    assert tokens * 24_576 <= rest < (tokens + 16) * 24_576


def test_the_pool_is_no_larger_than_all_running_requests_can_use() -> None:
    assert plan(max_running_requests=2).pool_tokens == 2 * 8192


def test_max_total_tokens_is_the_pool_rounded_up_to_pages() -> None:
    assert plan(max_total_tokens=5000).pool_tokens == 5008


def test_a_short_context_needs_no_more_than_itself() -> None:
    needed = 2 * GIB + 128 * 24_576
    small = plan(context_length=128, total_bytes=2 * needed, max_running_requests=1)
    assert small.pool_tokens == 128


def test_the_error_shows_the_sum_and_names_the_device_and_the_fraction() -> None:
    error = refusal(fraction=0.1, device="NVIDIA H200")
    assert error.message.startswith(
        "Loaded weights leave no memory for the KV cache under --mem-fraction-static=0.1. "
    )
    for fact in (
        "=0.1. NVIDIA H200 has 16.00 GiB in total",
        "the share is 1.60 GiB",
        "weights take 2.00 GiB",
        "24,576 bytes per token",
        f"{LEAST_TOKENS:,} tokens wanted",
    ):
        assert fact in error.message
    assert error.remedy == "Raise --mem-fraction-static to 0.127 or more."


def test_too_many_wanted_tokens_may_also_be_lowered() -> None:
    error = refusal(max_total_tokens=400_000)
    assert "× 400,000 tokens wanted" in error.message
    assert "lower --max-total-tokens" in error.remedy


def test_where_no_fraction_works_the_error_says_how_much_is_needed() -> None:
    error = refusal(total_bytes=2 * GIB)
    assert error.remedy == "No fraction works: take a device with 2.02 GiB or more, or a smaller model."


def test_small_sums_are_shown_in_small_units() -> None:
    error = refusal(total_bytes=GIB, weights_bytes=100_000, bytes_per_token=10, fraction=0.0001)
    assert "the share is 0.10 MiB; weights take 97.66 KiB" in error.message


@given(
    total=st.integers(1 << 20, 1 << 41),
    fraction=st.integers(1, 1000),
    weights=st.integers(1, 1 << 40),
    bytes_per_token=st.integers(1, 1 << 20),
    page_size=st.sampled_from([1, 16, 64]),
    context_length=st.integers(1, 1 << 17),
    wanted=st.none() | st.integers(1, 1 << 20),
)
def test_the_advised_fraction_works_and_a_thousandth_less_does_not(
    total: int,
    fraction: int,
    weights: int,
    bytes_per_token: int,
    page_size: int,
    context_length: int,
    wanted: int | None,
) -> None:
    sizes = {
        "total_bytes": total,
        "weights_bytes": weights,
        "bytes_per_token": bytes_per_token,
        "page_size": page_size,
        "context_length": context_length,
        "max_total_tokens": wanted,
    }
    try:
        plan(fraction=fraction / 1000, **sizes)
    except NotEnoughMemory as error:
        found = re.search(r"Raise --mem-fraction-static to (\S+) or more", error.remedy)
        if found is None:
            refusal(fraction=1.0, **sizes)
            return
        smallest = float(found.group(1))
        assert plan(fraction=smallest, **sizes).pool_tokens > 0
        refusal(fraction=smallest - 0.001, **sizes)
    else:
        assume(False)


@given(
    total=st.integers(1 << 20, 1 << 41),
    fraction=st.floats(0.001, 1),
    weights=st.integers(1, 1 << 40),
    bytes_per_token=st.integers(1, 1 << 20),
)
def test_weights_and_pool_stay_within_the_share(
    total: int, fraction: float, weights: int, bytes_per_token: int
) -> None:
    try:
        made = plan(
            total_bytes=total, fraction=fraction, weights_bytes=weights, bytes_per_token=bytes_per_token
        )
    except NotEnoughMemory:
        return
    assert weights + made.pool_tokens * bytes_per_token <= total * (fraction + 1e-6)


def test_a_share_that_is_whole_is_not_cut_by_floating_point() -> None:
    assert int(10_000 * 0.043) == 429
    assert [share_bytes(10_000, k / 1000) for k in range(1001)] == [10 * k for k in range(1001)]


def test_the_description_is_the_sum_in_a_line() -> None:
    assert plan(max_total_tokens=16_384).describe() == (
        "Memory on the CPU: 0.5 of 16.00 GiB = 8.00 GiB; weights 2.00 GiB, KV cache 16,384 tokens × 24.0 KiB = "
        "0.38 GiB"
    )


def test_the_machines_memory_is_no_more_than_the_kernel_says() -> None:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < machine_memory_bytes() <= int(facts["MemTotal"].split()[0]) * 1024
