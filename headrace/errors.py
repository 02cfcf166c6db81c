"""The base of every error that a user can cause. Invariants are asserts, not these."""


class HeadraceError(Exception):
    """What happened, where, and what to do about it, in sentences that are shown as they are.

    `remedy` is a separate sentence, so that a caller may print it on a line of its own.
    Neither may hold a secret or a signed query string.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        # Names from files and stores may hold lone surrogates, which no log and no message can carry.
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.remedy = remedy.encode("utf-8", "backslashreplace").decode()

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()
