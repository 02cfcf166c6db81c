"""A model's parameters on a device of its own, copied from host memory group by group as they arrive there."""

from collections.abc import Mapping, Sequence

import torch

from headrace.engine.loading.weights import Slot


class DeviceCopy:
    """Owns the parameters on the device; lets go of those in host memory when all are copied.

    Attributes:
        parameters: by name; what they hold is undefined until their group is copied.
    """

    def __init__(
        self,
        host: Mapping[str, torch.Tensor],
        slots: Sequence[Slot],
        embedding: str,
        device: torch.device,
    ) -> None:
        """Args: embedding: the name of the parameter that may be copied by rows before its group is."""
        self.parameters = {name: torch.empty_like(tensor, device=device) for name, tensor in host.items()}
        self._host = dict(host)
        self._embedding = embedding
        self._names: dict[int, list[str]] = {}
        for slot in slots:
            self._names.setdefault(slot.group, []).append(slot.name)

    def copy_rows(self, rows: Sequence[int]) -> None:
        """Copy these rows of the embedding, which are in host memory, unless all of it is copied already."""
        if self._embedding in self._host:
            chosen = torch.tensor(rows, dtype=torch.int64)
            table = self.parameters[self._embedding]
            table[chosen.to(table.device)] = self._host[self._embedding][chosen].to(table.device)

    def copy_group(self, group: int) -> None:
        """Copy a group that is in host memory, once."""
        for name in self._names.pop(group, ()):
            self.parameters[name].copy_(self._host.pop(name))

    def copy_rest(self) -> None:
        """Copy what is left: everything is in host memory."""
        for group in list(self._names):
            self.copy_group(group)
