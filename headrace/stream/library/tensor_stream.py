"""A running load of tensors: what was opened and selected, in memory of its own, as it completes."""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.stream.library.arguments import device_text
from headrace.stream.library.memory_demand import checked_limit
from headrace.stream.library.memory_limit import MemoryGate, fit_chunks
from headrace.stream.library.opening import Opened
from headrace.stream.library.options import TensorOptions, checked
from headrace.stream.library.tensor_memory import TensorMemory
from headrace.stream.library.tensors import (
    as_array,
    as_tensor,
    check_device,
    check_dimensions,
    check_dtypes,
    check_framework,
)
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, ReadPlan, plan_reads
from headrace.stream.select import select
from headrace.stream.transfer.progress import Progress
from headrace.stream.transfer.transfer import Cancelled, Transfer
from headrace.stream.variables import (
    read_settings,
)
from headrace.stream.verify.mode import VerifyMode, check_mode

if TYPE_CHECKING:
    import torch

    from headrace.stream.ranks.distributed import DistributedTransfer, ReadOptions
    from headrace.stream.verify.verifier import BlockVerifier, Verified

# Within it small tensors need not come in the caller's order, if they can be read together.
_WINDOW_BYTES = 1 << 20


class StreamerMisused(HeadraceError):
    """Calls in an order that means nothing."""


class TensorStream:
    """Reading has begun when it is made. Threads may share `tensors`; all else belongs to one.

    Attributes:
        selection: what comes, in reading order.
        taken: how many tensors were.
    """

    _transfer: "Transfer | DistributedTransfer"

    def __init__(
        self,
        opened: Opened,
        device: "str | int | torch.device | None",
        options: TensorOptions,
        *,
        is_distributed: bool = False,
        keeps_all: bool = False,
    ) -> None:
        """Select, see that there is room, and start; the connections of `opened` are taken over.

        Args:
            is_distributed: share the reading with the other ranks of torch.distributed's group; each of them has
                to do so. Without a group it is a load like any other.
            keeps_all: all tensors will be held at once, whatever the limit.

        Raises:
            HeadraceError: of every kind that the selection, the settings and the machine's memory can cause.
        """
        self._device, self._framework = device_text(device), options.framework
        self._verifier: BlockVerifier | None = None
        self._owner = os.getpid()
        try:
            with telling(is_distributed):
                check_framework(self._framework, self._device)
                settings = read_settings()
                options = checked(options, settings)
                self.selection = select(
                    opened.shards,
                    names=options.names,
                    slices=options.slices,
                    tensor_parallel=options.tensor_parallel,
                )
                check_dimensions(
                    self._framework, ((tensor.name, tensor.shape) for tensor in self.selection.tensors)
                )
                self._torch_checked = False
                if "torch" in sys.modules:  # else its import is left for when bytes are on their way
                    self._check_torch()
                limit = checked_limit(
                    self.selection, options.memory_limit, settings.memory_limit, self._device, keeps_all
                )
                self._verifier = _verifier(options.verify, opened)
            sizes = [tensor.size_bytes for tensor in self.selection.tensors]
            self._memory = TensorMemory(sizes)
            self._gate = MemoryGate(sizes, limit) if limit is not None else None
            self.taken = 0
            self._told = 0
            self._finished: Iterator[int] | None = None
            self._turn = threading.Lock()
            chunk_bytes = options.chunk_bytes or DEFAULT_CHUNK_BYTES
            plan = plan_reads(self.selection.placements, chunk_bytes, window_bytes=_WINDOW_BYTES)
            plan = plan if limit is None else fit_chunks(plan, sizes, limit)
            self._transfer = self._start(plan, opened, options, chunk_bytes, is_distributed)
            # Whoever forgets it, open, would leave threads that wait for room for ever.
            weakref.finalize(self, self._transfer.abandon).atexit = False
        except BaseException:
            opened.close()
            if self._verifier is not None:
                self._verifier.close()
            raise

    def _start(
        self, plan: ReadPlan, opened: Opened, options: TensorOptions, chunk_bytes: int, is_distributed: bool
    ) -> "Transfer | DistributedTransfer":
        items, store, memory = opened.items, opened.store, self._memory.view
        reads: ReadOptions = {
            "concurrency": options.concurrency,
            "readers": opened.readers,
            "deadline_s": options.deadline_s,
            "verifier": self._verifier,
        }
        gate, rate_limit_mb_s = self._gate, options.rate_limit_mb_s
        if not is_distributed:
            return Transfer(plan, items, store, memory, gate=gate, rate_limit_mb_s=rate_limit_mb_s, **reads)
        from headrace.stream.ranks.start import start_distributed

        return start_distributed(
            plan,
            items,
            store,
            memory,
            chunk_bytes=chunk_bytes,
            gate=gate,
            rate_limit_mb_s=rate_limit_mb_s,
            **reads,
        )

    def _check_torch(self) -> None:
        if self._torch_checked:
            return
        check_device(self._device)
        check_dtypes(self._framework, ((tensor.name, tensor.dtype) for tensor in self.selection.tensors))
        self._torch_checked = True

    @property
    def complete(self) -> bool:
        """Whether every tensor was taken."""
        return self.taken == len(self.selection.tensors)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) as they complete, each once. A second iterator goes on where the first stopped.

        Raises:
            BadFramework: torch lacks a dtype or the device; before the first tensor.
            StreamerMisused: it was closed before the last.
            StoreError: what ended the transfer.
        """
        self._check_owner()
        self._check_torch()
        try:
            while (number := self._next()) is not None:
                # No local name holds the tensor while the caller has it: dropped there, it is gone.
                yield self.selection.tensors[number].name, self._take(number)
        except Cancelled:
            raise StreamerMisused(
                f"The streamer was closed when {self.taken:,} of {len(self.selection.tensors):,} tensors were taken.",
                remedy="Take them all before the with-block ends, or before close().",
            ) from None

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise StreamerMisused(
                "The streamer belongs to the process that this one was forked from.",
                remedy="Call stream_files in the process that takes the tensors.",
            )

    def _next(self) -> int | None:
        """The next tensor that is complete, None after the last; threads that ask get different ones."""
        self._check_owner()
        with self._turn:
            if self._finished is None:
                self._finished = self._transfer.finished_groups()
            number = next(self._finished, None)
            if number is not None:
                self._told += 1
            elif self._told < len(self.selection.tensors):
                raise Cancelled  # what ended the load was raised to whoever asked then
            return number

    def _take(self, number: int) -> Any:
        selected = self.selection.tensors[number]
        memory = self._memory.take(number)
        tensor: Any
        if self._framework == "numpy":
            tensor = as_array(memory, selected.dtype, selected.shape)
        else:
            tensor = as_tensor(memory, selected.dtype, selected.shape)
            if self._device != "cpu":
                tensor = tensor.to(self._device)
        with self._turn:
            self.taken += 1
        if self._gate is not None:
            self._gate.release(number)
            self._transfer.wake()
        return tensor

    def verified(self) -> "Verified | None":
        """How much is proved so far; None where verification is off."""
        self._check_owner()
        return self._verifier.summary() if self._verifier is not None else None

    def progress(self) -> Progress:
        """How far the reading is."""
        self._check_owner()
        return self._transfer.progress()

    def close(self) -> None:
        """End all threads and connections, and let go of the tensors that were not taken.

        In a process that was forked meanwhile there are no threads, and the connections are the parent's.
        """
        if os.getpid() != self._owner:
            self._memory.drop()
            return
        self._transfer.cancel()
        # What ended it was raised to whoever took tensors; who leaves early does not want to know.
        with contextlib.suppress(Cancelled, HeadraceError):
            self._transfer.wait()
        if self._verifier is not None:
            self._verifier.close()
        self._memory.drop()


def _verifier(mode: VerifyMode, opened: Opened) -> "BlockVerifier | None":
    check_mode(mode)
    if mode == "off":
        return None
    from headrace.stream.verify.opened import verify_opened

    return verify_opened(mode, opened)


def telling(is_distributed: bool) -> contextlib.AbstractContextManager[None]:
    """Around what comes before a load starts: where ranks share it, the others learn of an error."""
    if not is_distributed:
        return contextlib.nullcontext()
    from headrace.stream.ranks.telling import telling_peers

    return telling_peers()
