"""How much prompt a step computes beside others: from told seconds, no clock."""

from headrace.engine.scheduling.pace import PrefillPace


def test_a_prompt_alone_gets_the_whole_limit() -> None:
    pace = PrefillPace(512)
    pace.observe(prefill_tokens=512, decodes=0, seconds=2.0)
    assert pace.budget(somebody_waits=False) == 512


def test_beside_others_a_chunk_fits_the_goal() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    pace.observe(prefill_tokens=500, decodes=0, seconds=0.5)  # 1 ms a token
    assert pace.budget(somebody_waits=True) == 80


def test_what_a_step_without_a_prompt_takes_is_left_to_it() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    for _ in range(50):
        pace.observe(prefill_tokens=0, decodes=8, seconds=0.03)
    pace.observe(prefill_tokens=500, decodes=0, seconds=0.53)  # 1 ms a token beside the 30
    assert pace.budget(somebody_waits=True) in (49, 50)


def test_steps_of_a_steady_machine_take_what_the_goal_says() -> None:
    def seconds(tokens: int) -> float:
        return 0.025 + 0.0008 * tokens

    pace = PrefillPace(512, goal_s=0.09)
    pace.observe(prefill_tokens=32, decodes=0, seconds=seconds(32))  # the warm-up
    for _ in range(20):
        pace.observe(prefill_tokens=0, decodes=10, seconds=seconds(10))
    for _ in range(20):
        budget = pace.budget(somebody_waits=True)
        pace.observe(prefill_tokens=budget, decodes=10, seconds=seconds(budget + 10))
    assert 0.08 < seconds(pace.budget(somebody_waits=True) + 10) <= 0.09


def test_tokens_that_grow_dearer_with_the_context_get_fewer() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    for step in range(60):
        budget = pace.budget(somebody_waits=True)
        taken = 0.0005 * (1 + step / 20) * budget
        if step > 10:
            assert taken < 0.09
        pace.observe(prefill_tokens=budget, decodes=4, seconds=taken)


def test_dearer_tokens_are_believed_sooner_than_cheaper_ones() -> None:
    def price_after(first: float, second: float) -> float:
        pace = PrefillPace(4096, goal_s=1.0)
        for token_s in (first, second):
            pace.observe(prefill_tokens=100, decodes=0, seconds=100 * token_s)
        return 1.0 / pace.budget(somebody_waits=True)

    assert abs(price_after(0.001, 0.002) - 0.0016) < 1e-5
    assert abs(price_after(0.002, 0.001) - 0.0017) < 1e-5


def test_a_base_from_busier_times_does_not_make_tokens_look_free() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    for _ in range(50):
        pace.observe(prefill_tokens=0, decodes=8, seconds=0.07)
    pace.observe(prefill_tokens=64, decodes=8, seconds=0.06)  # 30 ms and 64 tokens in as much
    assert pace.budget(somebody_waits=True) == 106


def test_a_slow_machine_still_gets_on() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    pace.observe(prefill_tokens=100, decodes=0, seconds=100.0)
    assert pace.budget(somebody_waits=True) == 32


def test_the_limit_is_never_exceeded() -> None:
    pace = PrefillPace(8, goal_s=0.08)
    pace.observe(prefill_tokens=100, decodes=0, seconds=100.0)
    assert pace.budget(somebody_waits=True) == 8
    pace.observe(prefill_tokens=1000, decodes=0, seconds=0.001)
    assert pace.budget(somebody_waits=True) == 8


def test_where_decoding_alone_exceeds_the_goal_a_prompt_gets_as_much_time_as_it() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    for _ in range(50):
        pace.observe(prefill_tokens=0, decodes=8, seconds=0.2)
    pace.observe(prefill_tokens=100, decodes=8, seconds=0.4)  # 2 ms a token
    assert pace.budget(somebody_waits=True) in (99, 100)
