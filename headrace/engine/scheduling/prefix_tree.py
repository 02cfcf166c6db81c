"""The prefix cache: which pages hold the keys and values of which token sequences. Pure.

A tree whose edges are whole pages of tokens: the path from the root to a node spells a prefix, and the node
owns the page with the last of its keys and values. Requests lock the node that they build on; what no request
locks, directly or through a descendant, can be evicted, least recently used first. After "Efficiently
Programming Large Language Models using SGLang" (RadixAttention), with pages for edges.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class PageNode:
    """One cached page.

    Attributes:
        tokens: the page's tokens, as many as a page holds; () at the root.
        page: the page's number in the pool; -1 at the root.
        locks: requests that build on this node or on one below it.
        used: when it was last matched or inserted, in the tree's own count.
        serial: breaks ties of `used`: the older node first.
    """

    tokens: tuple[int, ...]
    page: int
    parent: "PageNode | None"
    serial: int
    children: dict[tuple[int, ...], "PageNode"] = field(default_factory=dict)
    locks: int = 0
    used: int = 0

    def path(self) -> list["PageNode"]:
        """The nodes from below the root to this one."""
        nodes: list[PageNode] = []
        node: PageNode = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """The cached pages of one pool. It takes pages from requests and gives them back when they are evicted."""

    def __init__(self, page_size: int) -> None:
        assert page_size > 0
        self.page_size = page_size
        self._root = PageNode((), -1, None, 0)
        self._clock = 0
        self._serial = 0
        self._page_count = 0
        self._locked_count = 0

    @property
    def page_count(self) -> int:
        """Pages that the tree owns."""
        return self._page_count

    @property
    def evictable_count(self) -> int:
        """Pages that `evict` could give back now."""
        return self._page_count - self._locked_count

    def match(self, tokens: Sequence[int]) -> PageNode:
        """The deepest node whose path is a prefix of `tokens`; the root where nothing is cached."""
        self._clock += 1
        node = self._root
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            child = node.children.get(tuple(tokens[start : start + self.page_size]))
            if child is None:
                break
            child.used = self._clock
            node = child
        return node

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> tuple[PageNode, list[int]]:
        """Give the tree the pages of `tokens` (a whole number of pages).

        Returns:
            The node at the end of the path, and the pages that stay the caller's since the tree already had
            others with the same tokens there.
        """
        assert len(tokens) == len(pages) * self.page_size
        self._clock += 1
        node = self._root
        spare: list[int] = []
        for index, page in enumerate(pages):
            edge = tuple(tokens[index * self.page_size : (index + 1) * self.page_size])
            child = node.children.get(edge)
            if child is None:
                self._serial += 1
                child = PageNode(edge, page, node, self._serial)
                node.children[edge] = child
                self._page_count += 1
            elif child.page != page:
                spare.append(page)
            child.used = self._clock
            node = child
        return node, spare

    def lock(self, node: PageNode) -> None:
        """Keep a node and everything above it from eviction until `unlock`."""
        while node.parent is not None:
            self._locked_count += node.locks == 0
            node.locks += 1
            node = node.parent

    def unlock(self, node: PageNode) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            assert node.locks > 0, "unlocked more often than locked"
            node.locks -= 1
            self._locked_count -= node.locks == 0
            node = node.parent

    def evict(self, count: int) -> list[int]:
        """Drop up to `count` pages that nobody builds on, least recently used and deepest first; their numbers."""
        if count <= 0:
            return []
        leaves = [(node.used, -node.serial, node) for node in self._leaves()]
        heapq.heapify(leaves)
        pages: list[int] = []
        while leaves and len(pages) < count:
            _, _, node = heapq.heappop(leaves)
            parent = node.parent
            assert parent is not None
            del parent.children[node.tokens]
            self._page_count -= 1
            pages.append(node.page)
            if parent.parent is not None and not parent.children and parent.locks == 0:
                heapq.heappush(leaves, (parent.used, -parent.serial, parent))
        return pages

    def _leaves(self) -> list[PageNode]:
        """Unlocked nodes without children."""
        found: list[PageNode] = []
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            elif node.locks == 0:
                found.append(node)
        return found
