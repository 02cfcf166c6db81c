"""The memory plan is arithmetic, and what its error advises is true."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.engine.memory import (
    LEAST_TOKENS,
    Demand,
    Device,
    MemoryPlan,
    NotEnoughMemory,
    machine_memory_bytes,
    plan_memory,
    share_bytes,
)
from headrace.stream.library.memory_room import Room

GIB = 1 << 30
NOBODY_ELSE = "the machine's available memory"
DEMAND: dict[str, Any] = {
    "weights_bytes": 2 * GIB,
    "bytes_per_token": 24_576,
    "context_length": 8192,
    "page_size": 16,
    "max_running_requests": 64,
    "max_total_tokens": None,
}


def plan(
    *,
    device: str = "the CPU",
    total_bytes: int = 16 * GIB,
    free_bytes: int | None = None,
    working_bytes: int = 0,
    fraction: float | None = 0.5,
    **changes: Any,
) -> MemoryPlan:
    """The plan for a machine whose memory is all free, unless `free_bytes` says otherwise."""
    room = Room(total_bytes if free_bytes is None else free_bytes, NOBODY_ELSE)
    return plan_memory(
        Device(device, total_bytes, room, working_bytes), fraction, Demand(**{**DEMAND, **changes})
    )


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


def test_a_default_pool_is_made_smaller_where_others_hold_memory_and_says_so() -> None:
    made = plan(fraction=None, free_bytes=4 * GIB)
    assert made.pool_tokens == 2 * GIB // 24_576 // 16 * 16
    assert made.describe() == (
        "Memory on the CPU: 0.85 of 16.00 GiB = 13.60 GiB; weights 2.00 GiB, KV cache 87,376 tokens × 24.0 KiB = "
        "2.00 GiB, made smaller since the machine's available memory leaves 4.00 GiB now"
    )


def test_what_the_process_itself_takes_is_left_to_it() -> None:
    assert plan(fraction=None, free_bytes=5 * GIB, working_bytes=GIB) == replace_device(
        plan(fraction=None, free_bytes=4 * GIB), free_bytes=5 * GIB, working_bytes=GIB
    )


def replace_device(made: MemoryPlan, *, free_bytes: int, working_bytes: int) -> MemoryPlan:
    room = Room(free_bytes, made.device.room.bound)
    return replace(made, device=replace(made.device, room=room, working_bytes=working_bytes))


def test_a_default_pool_that_fits_is_not_touched_by_what_others_hold() -> None:
    assert plan(fraction=None, free_bytes=15 * GIB).pool_tokens == plan(fraction=None).pool_tokens
    assert "smaller" not in plan(fraction=None, free_bytes=15 * GIB).describe()


def test_a_share_that_was_asked_for_and_cannot_be_had_is_refused_with_the_sum_and_the_largest() -> None:
    error = refusal(fraction=0.5, free_bytes=4 * GIB)
    assert error.message == (
        "Weights and KV cache would take more memory than there is. The CPU has 16.00 GiB in total, and the machine's "
        "available memory leaves 4.00 GiB now; weights take 2.00 GiB, the KV cache 24,576 bytes per token × 262,144 "
        "tokens wanted = 6.00 GiB, together 8.00 GiB."
    )
    assert (
        error.remedy
        == "Lower --mem-fraction-static to 0.25 or less, or give --max-total-tokens 87376 or less."
    )
    assert plan(fraction=0.25, free_bytes=4 * GIB).pool_tokens == 87_376
    assert plan(fraction=0.5, max_total_tokens=87_376, free_bytes=4 * GIB).pool_tokens == 87_376
    refusal(fraction=0.251, free_bytes=4 * GIB)
    refusal(fraction=0.5, max_total_tokens=87_377, free_bytes=4 * GIB)


def test_the_sum_of_a_refusal_has_the_process_s_own_part_in_it() -> None:
    assert "leaves 4.00 GiB now, 0.50 GiB of it for the process itself; weights" in (
        refusal(free_bytes=4 * GIB, working_bytes=GIB // 2).message
    )


def test_tokens_that_were_asked_for_and_cannot_be_had_are_refused_under_the_default_share_too() -> None:
    error = refusal(fraction=None, max_total_tokens=100_000, free_bytes=4 * GIB)
    assert error.remedy == "Lower --max-total-tokens to 87376 or less."
    assert plan(fraction=None, max_total_tokens=87_376, free_bytes=4 * GIB).pool_tokens == 87_376


@pytest.mark.parametrize("fraction", [None, 0.5])
def test_weights_that_do_not_fit_what_there_is_now_are_refused_with_what_is_needed(
    fraction: float | None,
) -> None:
    error = refusal(fraction=fraction, free_bytes=GIB, working_bytes=GIB // 2)
    assert "leaves 1.00 GiB now" in error.message
    assert error.remedy.startswith("No fraction works now: 2.52 GiB are needed. End what else takes memory")


def test_a_machine_that_can_never_hold_it_is_told_what_is_needed_with_the_process_s_part() -> None:
    error = refusal(fraction=None, total_bytes=2 * GIB, working_bytes=GIB)
    assert error.remedy == "No fraction works: take a device with 3.02 GiB or more, or a smaller model."


def test_a_higher_share_is_not_advised_where_others_hold_the_memory() -> None:
    error = refusal(fraction=0.01, free_bytes=GIB)
    assert error.message.startswith("Loaded weights leave no memory for the KV cache")
    assert error.remedy.startswith("No fraction works now: 2.02 GiB are needed.")


sizes = st.fixed_dictionaries(
    {
        "total_bytes": st.integers(1 << 20, 1 << 41),
        "free_bytes": st.integers(0, 1 << 41),
        "working_bytes": st.integers(0, 1 << 30),
        "weights_bytes": st.integers(1, 1 << 40),
        "bytes_per_token": st.integers(1, 1 << 20),
        "page_size": st.sampled_from([1, 16, 64]),
        "context_length": st.integers(1, 1 << 17),
        "max_total_tokens": st.none() | st.integers(1, 1 << 20),
    }
).map(lambda drawn: {**drawn, "free_bytes": min(drawn["free_bytes"], drawn["total_bytes"])})


@given(sizes=sizes, fraction=st.none() | st.integers(1, 1000))
def test_no_plan_takes_more_than_there_is(sizes: dict[str, Any], fraction: int | None) -> None:
    try:
        made = plan(**sizes, fraction=fraction and fraction / 1000)
    except NotEnoughMemory:
        return
    taken = made.weights_bytes + made.kv_cache_bytes
    assert taken + sizes["working_bytes"] <= sizes["free_bytes"]
    if sizes["max_total_tokens"] is not None:
        assert made.pool_tokens >= sizes["max_total_tokens"]
    assert made.pool_tokens >= min(
        LEAST_TOKENS, sizes["context_length"], sizes["max_total_tokens"] or LEAST_TOKENS
    )


@given(sizes=sizes)
def test_the_default_is_refused_only_where_no_share_works(sizes: dict[str, Any]) -> None:
    sizes = {**sizes, "max_total_tokens": None}
    try:
        plan(**sizes, fraction=None)
    except NotEnoughMemory as error:
        if "Raise --mem-fraction-static" in error.remedy:
            return
        for share in (0.001, 0.25, 0.5, 0.75, 1.0):
            refusal(**sizes, fraction=share)


@given(sizes=sizes, fraction=st.integers(1, 1000))
def test_every_value_that_a_refusal_for_want_of_room_advises_works(
    sizes: dict[str, Any], fraction: int
) -> None:
    try:
        plan(**sizes, fraction=fraction / 1000)
    except NotEnoughMemory as error:
        if not error.message.startswith("Weights and KV cache would take more"):
            return
        if tokens := re.search(r"--max-total-tokens (?:to )?(\d+) or less", error.remedy):
            advised = {**sizes, "max_total_tokens": int(tokens.group(1))}
            assert plan(**advised, fraction=fraction / 1000).pool_tokens == int(tokens.group(1))
        if share := re.search(r"Lower --mem-fraction-static to (\S+) or less", error.remedy):
            assert plan(**sizes, fraction=float(share.group(1))).pool_tokens > 0


@given(sizes=sizes, fraction=st.integers(1, 1000))
def test_whoever_follows_the_advice_gets_there(sizes: dict[str, Any], fraction: int) -> None:
    share: float = fraction / 1000
    for _ in range(3):
        try:
            plan(**sizes, fraction=share)
        except NotEnoughMemory as error:
            if "No fraction works" in error.remedy:
                return
            if higher := re.search(r"Raise --mem-fraction-static to (\S+) or more", error.remedy):
                assert float(higher.group(1)) > share
                share = float(higher.group(1))
            else:
                tokens = re.search(r"--max-total-tokens (?:to )?(\d+) or less", error.remedy)
                assert tokens
                sizes = {**sizes, "max_total_tokens": int(tokens.group(1))}
        else:
            return
    pytest.fail("three advices, and still no plan")


def test_the_machines_memory_is_no_more_than_the_kernel_says() -> None:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < machine_memory_bytes() <= int(facts["MemTotal"].split()[0]) * 1024
