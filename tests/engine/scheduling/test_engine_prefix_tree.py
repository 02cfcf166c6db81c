"""The prefix tree: what is matched, what is kept, what goes first."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace.engine.scheduling.prefix_tree import PageNode, PrefixTree


def pages_of(node: PageNode) -> list[int]:
    return [item.page for item in node.path()]


def test_the_longest_prefix_of_whole_pages_is_matched() -> None:
    tree = PrefixTree(2)
    tree.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    assert pages_of(tree.match([1, 2, 3, 4, 5, 9])) == [10, 11]
    assert pages_of(tree.match([1, 2, 3])) == [10]
    assert pages_of(tree.match([1])) == []
    assert pages_of(tree.match([2, 1, 3, 4])) == []


def test_inserting_what_is_there_leaves_the_pages_with_the_caller() -> None:
    tree = PrefixTree(2)
    tree.insert([1, 2, 3, 4], [10, 11])
    node, spare = tree.insert([1, 2, 3, 4, 5, 6], [20, 21, 22])
    assert spare == [20, 21]
    assert pages_of(node) == [10, 11, 22]
    assert tree.page_count == 3


def test_the_least_recently_used_goes_first_and_leaves_before_their_parents() -> None:
    tree = PrefixTree(1)
    tree.insert([1, 2], [10, 11])
    tree.insert([3], [12])
    tree.match([1, 2])
    assert tree.evict(1) == [12]
    assert tree.evict(5) == [11, 10]
    assert tree.page_count == 0


def test_what_a_request_builds_on_stays() -> None:
    tree = PrefixTree(1)
    node, _ = tree.insert([1, 2], [10, 11])
    tree.insert([1, 2, 3], [10, 11, 12])
    tree.lock(node)
    assert tree.evictable_count == 1
    assert tree.evict(9) == [12]
    tree.unlock(node)
    assert tree.evict(9) == [11, 10]


def test_unlocking_more_often_than_locking_is_a_defect() -> None:
    tree = PrefixTree(1)
    node, _ = tree.insert([1], [10])
    with pytest.raises(AssertionError):
        tree.unlock(node)


@pytest.mark.property
@given(st.data())
def test_the_tree_is_what_a_list_of_prefixes_would_be(data: st.DataObject) -> None:
    """Beside a plain model: a map from prefix to page."""
    size = data.draw(st.integers(1, 3))
    tree, plain, locked, next_page = PrefixTree(size), dict[tuple[int, ...], int](), list[PageNode](), 0
    sequences = st.lists(st.integers(0, 1), max_size=12)
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["insert", "match", "lock", "unlock", "evict"])):
            case "insert":
                tokens = data.draw(sequences)
                tokens = tokens[: len(tokens) // size * size]
                pages = list(range(next_page, next_page + len(tokens) // size))
                next_page += len(pages)
                node, spare = tree.insert(tokens, pages)
                prefixes = [tuple(tokens[: end * size]) for end in range(1, len(pages) + 1)]
                assert spare == [p for p, prefix in zip(pages, prefixes, strict=True) if prefix in plain]
                plain |= {x: p for p, x in zip(pages, prefixes, strict=True) if x not in plain}
                assert pages_of(node) == [plain[prefix] for prefix in prefixes]
            case "match":
                tokens = data.draw(sequences)
                expected = []
                for end in range(size, len(tokens) + 1, size):
                    if tuple(tokens[:end]) not in plain:
                        break
                    expected.append(plain[tuple(tokens[:end])])
                assert pages_of(tree.match(tokens)) == expected
            case "lock":
                node = tree.match(data.draw(sequences))
                tree.lock(node)
                locked.append(node)
            case "unlock" if locked:
                tree.unlock(locked.pop(data.draw(st.integers(0, len(locked) - 1))))
            case "evict":
                count = data.draw(st.integers(0, 6))
                kept = {page for node in locked for page in pages_of(node)}
                free = set(plain.values()) - kept
                assert tree.evictable_count == len(free)
                evicted = tree.evict(count)
                assert len(evicted) == len(set(evicted)) == min(count, len(free))
                assert set(evicted) <= free
                plain = {prefix: page for prefix, page in plain.items() if page not in evicted}
                # No prefix is left without the one before it.
                assert all(prefix[:-size] in plain or len(prefix) == size for prefix in plain)
        assert tree.page_count == len(plain)
