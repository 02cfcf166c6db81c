"""Pages of the KV cache: which are free and who holds which. Pure."""

import heapq


class PagePool:
    """A fixed number of pages of `page_size` tokens each; page p holds slots [p·size, (p + 1)·size).

    Attributes:
        used_count: pages that were ever held, since the pool was made or `forget_use`: page 0 and on. The others'
            memory is untouched.
    """

    def __init__(self, page_count: int, page_size: int) -> None:
        assert page_count > 0 and page_size > 0
        self.page_count = page_count
        self.page_size = page_size
        self._free = list(range(page_count))  # a heap
        self._held: set[int] = set()
        self.used_count = 0

    @property
    def free_count(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens of one request need."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages, the lowest ones, ascending. Asking for more than are free is a defect.

        Lowest first keeps a lone request's slots neighbours, which attention reads without a copy, and leaves
        memory that was never touched untouched.
        """
        assert 0 <= count <= len(self._free), f"{count} pages asked for, {len(self._free)} are free"
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self._held.update(pages)
        if pages:
            self.used_count = max(self.used_count, pages[-1] + 1)
        return pages

    def forget_use(self) -> None:
        """The memory of all pages was given back to the system. None may be held."""
        assert not self._held
        self.used_count = 0

    def release(self, pages: list[int]) -> None:
        """Give pages back. A page that is not held is a defect."""
        for page in pages:
            assert page in self._held, f"page {page} is not held"
            self._held.remove(page)
            heapq.heappush(self._free, page)
