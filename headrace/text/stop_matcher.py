"""Stop strings in a stream of text: nothing of a stop string gets through, nothing else is held back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError


class StopStringError(HeadraceError):
    """A stop string that can match nothing sensible; the request must be refused (400)."""


@dataclass(frozen=True, slots=True)
class StopStep:
    """What one piece of text led to.

    Attributes:
        text: text that is certain to belong to the answer; may be "".
        matched: the stop string that ended the answer, once one has.
    """

    text: str
    matched: str | None = None


@dataclass(slots=True)
class _Node:
    """A state of the automaton: the longest suffix of the text that begins a stop string.

    Attributes:
        depth: length of that suffix, which is what must be held back.
        stop: the longest stop string that ends here, if any does.
    """

    depth: int
    stop: str | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)
    fallback: "_Node | None" = None


class StopMatcher:
    """Finds the first stop string of one answer, whatever pieces the answer arrives in.

    The rule is that of a reader who gets one character at a time: the answer ends as soon as a stop string
    is complete. If several are complete at the same character, the longest counts. The text is cut where
    that stop string begins. This depends on the text alone, never on how it was split, needs no look-ahead,
    and leaves no stop string inside the text before the cut.

    The automaton is that of Aho and Corasick, "Efficient string matching" (1975): linear in the text, however
    many stop strings there are.
    """

    __slots__ = ("_held", "_matched", "_node", "_root")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises StopStringError for an empty stop string."""
        self._root = _build(stops)
        self._node = self._root
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopStep:
        """The text that became certain. After a match nothing more is let through."""
        if self._matched is not None:
            return StopStep("", self._matched)
        if not self._root.children:
            return StopStep(text)
        node = self._node
        for index, character in enumerate(text):
            node = _advance(node, character)
            if node.stop is not None:
                seen = self._held + text[: index + 1]
                self._held = ""
                self._matched = node.stop
                return StopStep(seen[: len(seen) - len(node.stop)], node.stop)
        self._node = node
        seen = self._held + text
        certain = len(seen) - node.depth
        self._held = seen[certain:]
        return StopStep(seen[:certain])

    def finish(self) -> str:
        """What was held back for a stop string that never came; "" after a match."""
        held, self._held = self._held, ""
        self._node = self._root
        return held


def _build(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        if not stop:
            raise StopStringError("A stop string is empty.", remedy="Leave it out or give it a character.")
        node = root
        for character in stop:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.stop = stop
    _link_fallbacks(root)
    return root


def _link_fallbacks(root: _Node) -> None:
    """Point each state to the one for its longest proper suffix; breadth first, as those are shorter."""
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.children.items():
            fallback = root if node.fallback is None else _advance(node.fallback, character)
            child.fallback = fallback
            if child.stop is None:
                child.stop = fallback.stop
            queue.append(child)


def _advance(node: _Node, character: str) -> _Node:
    while True:
        child = node.children.get(character)
        if child is not None:
            return child
        if node.fallback is None:
            return node
        node = node.fallback
