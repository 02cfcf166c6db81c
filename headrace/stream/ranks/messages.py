"""What ranks of one machine say to each other, and how it travels: a packet each."""

from typing import Literal

import msgspec

LONGEST_TEXT = 8_000  # characters of an error's text; a packet must fit a socket's buffer


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A chunk lies in a slot of the sender's ring."""

    chunk: int
    slot: int


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """The sender has what it wants from a slot of the receiver's ring."""

    slot: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Nothing but a sign of life."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The sender has all that it wants and every chunk that it took lies in its ring."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The load has failed. `rank` is where it began, and may have been lost instead of having failed."""

    rank: int
    kind: Literal["lost", "failed"]
    text: str


Message = Ready | Copied | Alive | Leaving | Ended
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
LARGEST_PACKET = 1 << 16


def encode(message: Message) -> bytes:
    """A message as one packet."""
    return msgspec.msgpack.encode(message)


def decode(packet: bytes) -> Message:
    """A packet's message."""
    return _decoder.decode(packet)
