"""Weights that are on their way, as a step sees them: whether what it is about to read is there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.engine.loading.embedding_rows import Table, ranges_of_rows
from headrace.stream.transfer.transfer import Transfer

if TYPE_CHECKING:
    from headrace.engine.loading.device_copy import DeviceCopy

# While a part is waited for, so often is looked whether another step should be computed instead.
LOOK_EVERY_S = 0.02


class Arriving:
    """The weights of one load. Belongs to the thread that computes.

    Whatever is asked raises what ended the transfer before its end.
    """

    def __init__(self, transfer: Transfer, table: Table | None, copy: "DeviceCopy | None" = None) -> None:
        """Args:
        table: where the embedding's rows are read from; None where nothing is read.
        copy: what is to be copied to a device when it has arrived.
        """
        self._transfer, self._table, self._copy = transfer, table, copy
        self._hastened: dict[int, int] = {}  # row → the number by which the transfer knows it

    @property
    def is_over(self) -> bool:
        """Nothing is on its way any more."""
        return self._transfer.wait_end(0)

    def has_group(self, group: int, *, wait: bool = False) -> bool:
        """Whether a group of parameters can be read, now or, with `wait`, within LOOK_EVERY_S."""
        if not self._transfer.wait_group(group, LOOK_EVERY_S if wait else 0):
            return False
        if self._copy is not None:
            self._copy.copy_group(group)
        return True

    def has_rows(self, tokens: Sequence[int], *, wait: bool = False) -> bool:
        """The same of the embedding's rows of these tokens, which come before other bytes from now on."""
        if self._table is not None:
            rows = sorted({token for token in tokens if 0 <= token < self._table.rows})
            if new := [row for row in rows if row not in self._hastened]:
                number = self._transfer.hasten(ranges_of_rows(self._table, new))
                self._hastened.update(dict.fromkeys(new, number))
            for number in sorted({self._hastened[row] for row in rows}, reverse=True):
                if not self._transfer.wait_group(number, LOOK_EVERY_S if wait else 0):
                    return False
        if self._copy is not None:
            self._copy.copy_rows(sorted(set(tokens)))
        return True
