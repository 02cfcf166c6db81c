"""Weights that are on their way, as a step sees them: each part is waited for when it is about to be read."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engine.loading.embedding_rows import Table, ranges_of_rows
from headrace.engine.scheduling.request import Step
from headrace.models.layout import EMBEDDED_ROWS
from headrace.stream.transfer.transfer import Transfer

if TYPE_CHECKING:
    from headrace.engine.loading.device_copy import DeviceCopy

# While a part is waited for, so often is looked whether another step should be computed instead.
LOOK_EVERY_S = 0.02


class Abandoned(Exception):
    """A step is not worth finishing: another one is to be planned. Nothing of it was recorded."""


class Arriving:
    """The weights of one load. Belongs to the thread that computes."""

    def __init__(
        self,
        transfer: Transfer,
        table: Table | None,
        is_outdated: Callable[[Step], bool],
        copy: "DeviceCopy | None" = None,
    ) -> None:
        """Args:
        table: where the embedding's rows are read from; None where nothing is read.
        is_outdated: asked while a step waits for bytes: whether another one should take its place.
        copy: what is to be copied to a device when it has arrived.
        """
        self._transfer, self._table, self._copy = transfer, table, copy
        self._is_outdated = is_outdated
        self._hastened: dict[int, int] = {}  # row → the number by which the transfer knows it

    def before_group(self, step: Step) -> Callable[[int], None]:
        """What a forward pass over the step calls before it reads a group; raises Abandoned, and what ended the
        transfer."""

        def reach(group: int) -> None:
            if group == EMBEDDED_ROWS:
                self._reach_rows(step)
                return
            self._wait(group, step)
            if self._copy is not None:
                self._copy.copy_group(group)

        return reach

    def _reach_rows(self, step: Step) -> None:
        tokens = sorted(set(step.input_ids()))
        if self._table is not None:
            rows = [row for row in tokens if 0 <= row < self._table.rows]
            if new := [row for row in rows if row not in self._hastened]:
                number = self._transfer.hasten(ranges_of_rows(self._table, new))
                self._hastened.update(dict.fromkeys(new, number))
            for number in sorted({self._hastened[row] for row in rows}, reverse=True):
                self._wait(number, step)
        if self._copy is not None:
            self._copy.copy_rows(tokens)

    def _wait(self, group: int, step: Step) -> None:
        while not self._transfer.wait_group(group, LOOK_EVERY_S):
            if self._is_outdated(step):
                raise Abandoned
