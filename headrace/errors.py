"""The base of every error that a user can cause. Invariants are asserts, not these."""


class HeadraceError(Exception):
    """What happened, where, and what to do about it, in sentences that are shown as they are.

    `remedy` is a separate sentence, so that a caller may print it on a line of its own.
    Neither may hold a secret or a signed query string.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        message = printable(message)
        super().__init__(message)
        self.message = message
        self.remedy = printable(remedy)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it is, whatever arguments its class is made with: pools of processes hand errors on so."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[HeadraceError], arguments: tuple[object, ...]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


def printable(text: str, *, keep: str = "\n") -> str:
    """The text as a terminal and a log may show it.

    Names from files and stores may hold what commands a terminal, and lone surrogates, which nothing can carry: they
    become backslash escapes.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )
