"""Loading through changes: anew from the beginning, once the place is quiet, and not for ever."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from headrace.store.errors import AccessDenied, Changed, NotFound, StoreError, Truncated
from headrace.stream.restart import LONGEST_WAIT_S, QUIET_S, TRIES, load_through_changes


class Place:
    """A place whose looks are scripted; the last one stays."""

    def __init__(self, *looks: object) -> None:
        self.looks = list(looks)
        self.waited: list[float] = []

    def look(self) -> object:
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(seen, Exception):
            raise seen
        return seen


def changed() -> Changed:
    return Changed("s3://b/m/a", "The object was replaced.", remedy="Start again.")


def loads(*outcomes: object) -> Callable[[], object]:
    left = list(outcomes)

    def load() -> object:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return load


def run(load: Callable[[], object], place: Place) -> object:
    return load_through_changes(load, place.look, wait=place.waited.append)


def test_without_a_change_nothing_is_looked_at_again() -> None:
    place = Place(AssertionError())
    assert run(loads("weights"), place) == "weights"
    assert place.waited == []


@pytest.mark.parametrize("error", [changed(), Truncated("s3://b/m/a", "The object is shorter.")])
def test_a_change_begins_the_load_anew(error: StoreError) -> None:
    place = Place("listing")
    assert run(loads(error, "weights"), place) == "weights"
    assert place.waited == [QUIET_S[0]]


def test_an_upload_under_way_is_waited_for() -> None:
    place = Place("one shard", NotFound("s3://b/m", "Nothing."), "two shards", "three shards", "three shards")
    assert run(loads(changed(), "weights"), place) == "weights"
    assert place.waited == [QUIET_S[0]] * 4


def test_a_second_change_is_waited_for_longer_and_the_third_is_the_end() -> None:
    place = Place("listing")
    with pytest.raises(Changed) as caught:
        run(loads(*[changed() for _ in range(TRIES)], "never"), place)
    assert caught.value.remedy == "Loaded 3 times, and it changed each time. Start again."
    assert place.waited == list(QUIET_S)


def test_a_place_that_never_rests_ends_it() -> None:
    place = Place(*range(1000))
    with pytest.raises(Changed, match="still being changed after 900 s"):
        run(loads(changed(), "never"), place)
    assert sum(place.waited) <= LONGEST_WAIT_S


def test_other_errors_are_final() -> None:
    place = Place("listing")
    with pytest.raises(AccessDenied):
        run(loads(AccessDenied("s3://b/m/a", "No."), "never"), place)
    with pytest.raises(AccessDenied):
        run(loads(changed(), "never"), Place(AccessDenied("s3://b/m", "No.")))
    assert place.waited == []


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed is freed by the helper itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_nothing_of_the_failed_load_stays() -> None:
    class Memory:
        """Something that a weak reference can see."""

        itself: "Memory"

    seen: list[weakref.ref[Memory]] = []
    alive: list[bool] = []

    def load() -> str:
        if seen:
            alive.append(seen[0]() is not None)
            return "weights"
        memory = Memory()
        memory.itself = memory  # a cycle, as frames and errors make them
        seen.append(weakref.ref(memory))
        raise changed()

    place = Place("listing")
    assert run(load, place) == "weights"
    assert alive == [False]
