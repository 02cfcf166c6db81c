"""How hard the property tests try: a fixed slice in `make test`, many random examples in `make soak`."""

import os

from hypothesis import HealthCheck, settings

# Read at import, before the tests' surroundings clear the variables of this name.
SOAK = os.environ.get("HEADRACE_SOAK") == "1"


def examples(slice_count: int, soak_count: int = 5_000) -> int:
    """`max_examples` of a test whose slice is larger or smaller than the profile's."""
    return soak_count if SOAK else slice_count


def use_profile() -> None:
    """Make the profile that this run is for the default of every property test."""
    settings.register_profile("slice", max_examples=200, derandomize=True, deadline=None, database=None)
    settings.register_profile(
        "soak",
        max_examples=examples(200),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    settings.load_profile("soak" if SOAK else "slice")
