"""Which pages a request holds: its own, and those of the prefix cache that it builds on. Pure; who gets them is
decided by the scheduler.
"""

from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.prefix_tree import PageNode, PrefixTree
from headrace.engine.scheduling.request import Request

# Evicting looks at the whole tree: rather a few more pages at once than one each step.
_EVICT_AT_LEAST = 64


class RequestPages:
    """The pages of one pool, with a prefix cache or without."""

    def __init__(self, pool: PagePool, *, prefix_cache: bool) -> None:
        self.pool = pool
        self._tree = PrefixTree(pool.page_size) if prefix_cache else None

    @property
    def cached_count(self) -> int:
        """Pages that the prefix cache owns."""
        return self._tree.page_count if self._tree is not None else 0

    @property
    def evictable_count(self) -> int:
        """Pages that the prefix cache would give up."""
        return self._tree.evictable_count if self._tree is not None else 0

    # ---- what is cached

    def can_build_on_others(self, request: Request) -> bool:
        """Whether a cached prefix would be of use: all of a prompt that is scored has to be computed."""
        return self._tree is not None and not request.is_scored

    def match(self, request: Request) -> PageNode | None:
        """The cached prefix to build on; at least one token is left to compute, all if they are to be scored."""
        if self._tree is None or not self.can_build_on_others(request):
            return None
        node = self._tree.match(request.tokens(0, request.length - 1))
        return node if node.parent is not None else None

    def build_on(self, request: Request, node: PageNode | None) -> None:
        """Let a request that holds nothing begin after a cached prefix, or from its first token."""
        assert not request.pages and request.node is None
        request.computed, request.shared = 0, 0
        request.pages_changed += 1
        if node is not None:
            assert self._tree is not None
            self._tree.lock(node)
            request.node = node
            request.pages = [item.page for item in node.path()]
            request.shared = len(request.pages)
            request.computed = request.shared * self.pool.page_size

    def share(self, request: Request) -> None:
        """Give the cache the full pages of what is computed, and build on them."""
        if self._tree is None:
            return
        count = request.computed // self.pool.page_size
        if count <= request.shared:
            return
        pages = request.pages[:count]
        node, spare = self._tree.insert(request.tokens(0, count * self.pool.page_size), pages)
        self._tree.lock(node)
        if request.node is not None:
            self._tree.unlock(request.node)
        request.node, request.shared = node, count
        if spare:  # others computed the same meanwhile: theirs serve both
            request.pages[:count] = [item.page for item in node.path()]
            request.pages_changed += 1
            self.pool.release(spare)

    def forget_prefixes(self) -> None:
        """Empty the cache, of which nothing may be in use."""
        if self._tree is not None:
            self.pool.release(self._tree.evict(self._tree.page_count))

    # ---- taken and given back

    def owed(self, request: Request) -> int:
        """Pages that a request still needs for the tokens that it has and the next one."""
        return max(0, self.pool.pages_for(request.length + 1) - len(request.pages))

    def has_room(self, request: Request, node: PageNode | None, *, owed: int) -> bool:
        """Whether there are pages for all of a request that builds on `node`, beside `owed` to others."""
        available = self.pool.free_count + self.evictable_count
        cached = 0
        if node is not None:
            path = node.path()
            cached = len(path)
            available -= sum(item.locks == 0 for item in path)
        return available - owed >= self.pool.pages_for(request.length + 1) - cached

    def make_room(self, request: Request, count: int) -> bool:
        """Evict cached prefixes until there are pages for the next `count` tokens; False where that is not enough."""
        missing = self._missing(request, count)
        while missing > self.pool.free_count:
            if not self._evict(missing - self.pool.free_count):
                return False
        return True

    def take(self, request: Request, count: int) -> int:
        """Take what is free of the pages for the next `count` tokens; for how many of them there is room now."""
        missing = self._missing(request, count)
        if missing > 0:
            request.pages += self.pool.allocate(min(missing, self.pool.free_count))
        return min(count, len(request.pages) * self.pool.page_size - request.computed)

    def let_go(self, request: Request, *, share: bool = True) -> None:
        """Give back all pages; what the cache can keep of them stays there, if it may be shared."""
        if share:
            self.share(request)
        self.pool.release(request.pages[request.shared :])
        if request.node is not None:
            assert self._tree is not None
            self._tree.unlock(request.node)
        request.pages, request.node, request.shared, request.computed = [], None, 0, 0

    def _missing(self, request: Request, count: int) -> int:
        return self.pool.pages_for(request.computed + count) - len(request.pages)

    def _evict(self, count: int) -> bool:
        if self._tree is None:
            return False
        pages = self._tree.evict(max(count, _EVICT_AT_LEAST))
        self.pool.release(pages)
        return bool(pages)
