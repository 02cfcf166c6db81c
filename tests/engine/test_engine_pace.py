"""How much prompt a step computes beside others: from told seconds, no clock."""

from headrace.engine.pace import PrefillPace


def test_a_prompt_alone_gets_the_whole_limit() -> None:
    pace = PrefillPace(512)
    pace.observe(prefill_tokens=512, decodes=0, seconds=2.0)
    assert pace.budget(somebody_waits=False) == 512


def test_beside_others_a_chunk_fits_the_goal() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    pace.observe(prefill_tokens=500, decodes=0, seconds=0.5)  # 1 ms a token
    assert pace.budget(somebody_waits=True) == 80


def test_what_decoding_takes_is_left_to_it() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    pace.observe(prefill_tokens=500, decodes=0, seconds=0.5)
    for _ in range(50):
        pace.observe(prefill_tokens=0, decodes=8, seconds=0.03)
    assert pace.budget(somebody_waits=True) in (49, 50)


def test_a_slow_machine_still_gets_on() -> None:
    pace = PrefillPace(512, goal_s=0.08)
    pace.observe(prefill_tokens=100, decodes=0, seconds=100.0)
    assert pace.budget(somebody_waits=True) == 16


def test_the_limit_is_never_exceeded() -> None:
    pace = PrefillPace(8, goal_s=0.08)
    pace.observe(prefill_tokens=100, decodes=0, seconds=100.0)
    assert pace.budget(somebody_waits=True) == 8
    pace.observe(prefill_tokens=1000, decodes=0, seconds=0.001)
    assert pace.budget(somebody_waits=True) == 8
