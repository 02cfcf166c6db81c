"""How the ranks of one machine find each other: who is there, one socket to each, shared memory over it.

Bytes go through memory, so only who shares a kernel and a network namespace (which the names of abstract
sockets belong to) can load together. Everybody tells the group twice: who it is, and how meeting the others of
its machine went.
"""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import HeadraceError
from headrace.stream.ranks.declaration import Declaration, difference, read_declaration, write_declaration
from headrace.stream.ranks.errors import PeerFailed, RanksDisagree
from headrace.stream.ranks.group import Group
from headrace.stream.ranks.handshake import Address, close_all, listen, shake_hands
from headrace.stream.ranks.links import Link
from headrace.stream.ranks.messages import LONGEST_TEXT
from headrace.stream.ranks.ring import Ring, Slots
from headrace.stream.ranks.tickets import Tickets
from headrace.stream.ranks.wants import MachinePlan, plan_machine

_FEWEST_SLOTS = 4  # of each rank: reads under way and chunks that others copy
_SMALLEST_SLOT = 16
_logger = logging.getLogger(__name__)


class Hello(msgspec.Struct, frozen=True):
    """Who a rank is. Without an address it cannot share memory."""

    kernel: str
    network: str
    address: Address | None


class Met(msgspec.Struct, frozen=True):
    """How a rank's meeting went: "alone" where its machine's ranks cannot reach each other."""

    kind: Literal["together", "alone", "failed"]
    text: str = ""


@dataclass(slots=True)
class Machine:
    """The ranks of this machine, met. Places count them, in the order of their ranks in the group.

    Attributes:
        place: this rank's.
        ranks: of each place.
        links, slots: to each other place.
    """

    place: int
    ranks: Sequence[int]
    links: dict[int, Link]
    slots: dict[int, Slots]
    ring: Ring
    tickets: Tickets
    plan: MachinePlan

    def close(self) -> None:
        """Give all descriptors and the memory back."""
        self.tickets.close()
        self.ring.close()
        for slots in self.slots.values():
            slots.close()
        for link in self.links.values():
            link.close()


def meet(group: Group, declaration: Declaration, ring_bytes: int) -> Machine | None:
    """Find the other ranks of this machine; None where this rank loads for itself.

    Every rank of the group has to call it.

    Args:
        ring_bytes: shared memory for the whole machine.

    Raises:
        RanksDisagree: the ranks of this machine load different objects.
        PeerFailed: another rank of it could not go on.
        RanksCannotMeet: the group broke.
    """
    kernel, network = _identity()
    with contextlib.ExitStack() as undo:
        address, listener = _listen(group.size) if kernel else (None, None)
        if listener is not None:
            undo.enter_context(listener)
        hellos = _gather_hellos(group, Hello(kernel, network, address))
        ranks = _mates(group.rank, hellos)
        machine, met = None, Met("alone")
        failure: BaseException | None = None
        if listener is not None and len(ranks) > 1:
            try:
                machine = _join(listener, group.rank, ranks, hellos, declaration, ring_bytes)
                met = Met("together")
            except OSError as error:  # time-outs too
                met = Met("alone", f"rank {group.rank}: {error}")
            except BaseException as error:  # raised once the others know
                failure, met = error, Met("failed", told(error))
        if machine is not None:
            undo.callback(machine.close)
        results = _gather_results(group, met)
        if failure is not None:
            raise failure
        own = hellos[group.rank]
        for rank, (hello, result) in enumerate(zip(hellos, results, strict=True)):
            # Also one that never came as far as to listen.
            if result.kind == "failed" and (hello.kernel, hello.network) == (own.kernel, own.network):
                raise PeerFailed(rank, result.text)
        together = all(results[rank].kind == "together" for rank in ranks)
        _warn(
            group.rank, ranks, hellos, "; ".join(results[rank].text for rank in ranks if results[rank].text)
        )
        if machine is None or not together:
            return None
        undo.pop_all()
        assert listener is not None
        listener.close()
        return machine


def decline(group: Group, error: BaseException) -> None:
    """Take a rank's part in a meeting that it has not come to, since it could not begin: the others must not wait.

    Raises RanksCannotMeet.
    """
    kernel, network = _identity()
    _gather_hellos(group, Hello(kernel, network, None))
    _gather_results(group, Met("failed", told(error)))


def told(error: BaseException) -> str:
    """An error as other ranks are told of it."""
    text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    return text[:LONGEST_TEXT]


def _gather_hellos(group: Group, hello: Hello) -> list[Hello]:
    gathered = group.gather(msgspec.msgpack.encode(hello))
    return [msgspec.msgpack.decode(data, type=Hello) for data in gathered]


def _gather_results(group: Group, met: Met) -> list[Met]:
    gathered = group.gather(msgspec.msgpack.encode(met))
    return [msgspec.msgpack.decode(data, type=Met) for data in gathered]


def _mates(rank: int, hellos: Sequence[Hello]) -> list[int]:
    """The ranks that share this one's kernel and network namespace, itself too."""
    own = hellos[rank]
    if own.address is None:
        return [rank]
    same = (own.kernel, own.network)
    return [n for n, hello in enumerate(hellos) if hello.address and (hello.kernel, hello.network) == same]


def _identity() -> tuple[str, str]:
    """What tells kernels, and on one kernel networks, apart; "" where the system does not tell."""
    if sys.platform != "linux":
        return "", ""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        facts = Path("/proc/self/ns/net").stat()
    except OSError:
        return "", ""
    return kernel, f"{facts.st_dev}-{facts.st_ino}"


def _listen(backlog: int) -> tuple[Address | None, socket.socket | None]:
    try:
        return listen(backlog)
    except OSError as error:
        _logger.warning("No socket for the ranks of this machine: %s", error)
        return None, None


def _join(
    listener: socket.socket,
    rank: int,
    ranks: Sequence[int],
    hellos: Sequence[Hello],
    declaration: Declaration,
    ring_bytes: int,
) -> Machine:
    """Raises OSError where somebody cannot be reached, RanksDisagree."""
    addresses = {other: address for other in ranks if (address := hellos[other].address) is not None}
    place = ranks.index(rank)
    links: dict[int, Link] = {}
    slots: dict[int, Slots] = {}
    declarations: dict[int, Declaration] = {}
    with contextlib.ExitStack() as undo:
        part_bytes = ring_bytes // len(ranks)
        slot_bytes = max(_SMALLEST_SLOT, min(declaration.slot_bytes, part_bytes // _FEWEST_SLOTS))
        declarations[place] = declaration = msgspec.structs.replace(declaration, slot_bytes=slot_bytes)
        ring = Ring(max(_FEWEST_SLOTS, part_bytes // slot_bytes), slot_bytes)
        undo.callback(ring.close)
        tickets = Tickets.create() if place == 0 else None
        if tickets is not None:
            undo.callback(tickets.close)
        own = write_declaration(declaration)
        try:
            given = [ring.descriptor, own, *([tickets.descriptor] if tickets is not None else [])]
            for hand in shake_hands(listener, rank, addresses, given):
                at = ranks.index(hand.rank)
                links[at] = Link(hand.rank, hand.connection)
                undo.callback(links[at].close)
                try:
                    declarations[at] = read_declaration(hand.descriptors[1])
                    slots[at] = Slots(os.dup(hand.descriptors[0]), declarations[at].slot_bytes)
                    undo.callback(slots[at].close)
                    if at == 0:
                        tickets = Tickets(os.dup(hand.descriptors[2]))
                        undo.callback(tickets.close)
                finally:
                    close_all(hand.descriptors)
        finally:
            os.close(own)
        for at, other in declarations.items():
            if what := difference(declaration, other):
                raise RanksDisagree(rank, ranks[at], what)
        plan = plan_machine(
            [declarations[at].wants for at in range(len(ranks))],
            [item.size_bytes for item in declaration.objects],
            min(each.slot_bytes for each in declarations.values()),
        )
        assert tickets is not None
        if place == 0:
            tickets.fill(len(plan.chunks))  # nobody takes before all have said that they met
        undo.pop_all()
        return Machine(place, ranks, links, slots, ring, tickets, plan)


def _warn(rank: int, ranks: Sequence[int], hellos: Sequence[Hello], reasons: str) -> None:
    """Say where bytes are read more often than once for a machine. One rank of those concerned does it."""
    own = hellos[rank]
    if rank != ranks[0]:
        return
    if reasons:
        _logger.warning(
            "Ranks %s of one machine cannot share what they read, so each reads for itself: %s",
            list(ranks),
            reasons,
        )
    elif not own.kernel:
        _logger.warning("Rank %d reads for itself: sharing what is read needs Linux and its /proc.", rank)
    apart = [
        number
        for number, hello in enumerate(hellos)
        if own.kernel and hello.kernel == own.kernel and number not in ranks
    ]
    if apart:
        _logger.warning(
            "Ranks %s are on the machine of ranks %s but not in their network namespace: what both want is read "
            "twice. Run the ranks of a machine in one network namespace.",
            apart,
            list(ranks),
        )
