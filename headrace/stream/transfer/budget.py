"""One budget of connections for the process, however many transfers run, shared out fairly among them."""

import os
import threading
from collections.abc import Sequence

from headrace.stream.transfer.pace import PROCESS_CEILING


def fair_shares(limit: int, wishes: Sequence[int]) -> list[int]:
    """Max-min fair: nobody gets more than it wishes, and what one does not want the others share.

    What cannot be divided goes to those who came first.
    """
    shares = [0] * len(wishes)
    left = limit
    waiting = [number for number, wish in enumerate(wishes) if wish > 0]
    while waiting and left > 0:
        each = max(1, left // len(waiting))
        for number in waiting:
            more = min(each, wishes[number] - shares[number], left)
            shares[number] += more
            left -= more
        waiting = [number for number in waiting if shares[number] < wishes[number]]
    return shares


class Member:
    """A transfer's part of a budget. Connections that it gives back late count until it does."""

    def __init__(self, budget: "ConnectionBudget") -> None:
        self._budget = budget
        self.held = 0
        self.wish = 0

    def share(self, wish: int) -> int:
        """How many of the connections that it wishes it may have now."""
        return self._budget.share(self, wish)

    def take(self) -> bool:
        """Take one connection, if the process has one left. Ask `share` before."""
        return self._budget.take(self)

    def give_back(self) -> None:
        """Give one back."""
        self._budget.give_back(self)

    def leave(self) -> None:
        """Wish nothing any more."""
        self._budget.leave(self)


class ConnectionBudget:
    """So many connections and no more. Safe for threads; calls nobody."""

    def __init__(self, limit: int = PROCESS_CEILING) -> None:
        assert limit >= 1
        self.limit = limit
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._held = 0

    def join(self) -> Member:
        """A new member."""
        member = Member(self)
        with self._lock:
            self._members.append(member)
        return member

    def share(self, member: Member, wish: int) -> int:
        """See Member.share."""
        with self._lock:
            member.wish = wish
            if len(self._members) == 1:
                return min(wish, self.limit)
            shares = fair_shares(self.limit, [each.wish for each in self._members])
            return shares[self._members.index(member)] if member in self._members else 0

    def take(self, member: Member) -> bool:
        """See Member.take."""
        with self._lock:
            if self._held >= self.limit:
                return False
            self._held += 1
            member.held += 1
            return True

    def give_back(self, member: Member) -> None:
        """See Member.give_back."""
        with self._lock:
            assert member.held > 0
            self._held -= 1
            member.held -= 1

    def leave(self, member: Member) -> None:
        """See Member.leave."""
        with self._lock:
            self._members.remove(member)

    def begin_anew(self) -> None:
        """Forget members and connections: a forked process has none of the threads that hold them."""
        self._lock = threading.Lock()
        self._members = []
        self._held = 0


PROCESS_BUDGET = ConnectionBudget()
os.register_at_fork(after_in_child=PROCESS_BUDGET.begin_anew)
