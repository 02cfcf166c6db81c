"""All that may go wrong with one answer, drawn by chance: what a load has to get over, and what has to end it."""

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.source.manifest import BadManifest
from headrace.store.errors import (
    AccessDenied,
    Changed,
    Corrupt,
    ExpiredCredentials,
    NoCredentials,
    Throttled,
    TransientError,
    Truncated,
    Unsupported,
    WrongRegion,
)
from headrace.stream.transfer.ledger import DeadlineExceeded
from tests.faults import server as faults
from tests.faults.server import Behaviour, Exchange, Stored

# A behaviour for an answer of so many bytes.
Draw = Callable[[random.Random, int], Behaviour]


def _status(chance: random.Random, _size: int) -> Behaviour:
    return faults.error(chance.choice([408, 500, 502, 504]))


def _throttled(chance: random.Random, _size: int) -> Behaviour:
    headers = chance.choice([{}, {"Retry_After": "0"}, {"Retry_After": "0.01"}])
    return faults.error(chance.choice([429, 503]), **headers)


def _chunked(chance: random.Random, size: int) -> Behaviour:
    return faults.chunked(chance.randint(size // 20 + 1, size + 1))


def _cut_chunked(chance: random.Random, size: int) -> Behaviour:
    return faults.chunked(size // 7 + 1, stop_after=chance.randrange(size), end=chance.random() < 0.5)


def _slow_first_byte(chance: random.Random, _size: int) -> Behaviour:
    seconds = chance.uniform(0.001, 0.03)

    def behave(exchange: Exchange) -> None:
        exchange.server.stopped.wait(seconds)
        faults.honest(exchange)

    return behave


def _surplus_at_once(exchange: Exchange) -> None:
    faults.surplus_at_once(b"surplus")(exchange)


def _twice(exchange: Exchange) -> None:
    """The body comes twice, and the head announces it once."""
    faults.surplus(exchange.wanted, threading.Event())(exchange)


def redirected(exchange: Exchange) -> None:
    """The object is to be found elsewhere on the same server."""
    location = f"/bucket/moved/{exchange.asked.path.rpartition('/')[2]}"
    exchange.send(faults.error_answer(302, Location=location))


# ---- what a load gets over

# After these, bytes are missing.
FAILING: dict[str, Draw] = {
    "5xx": _status,
    "throttled": _throttled,
    "closed before the head": lambda chance, size: faults.close_before_head,
    "closed in the head": lambda chance, size: faults.close_in_head,
    "no HTTP": lambda chance, size: faults.garbage,
    "gzip on the way": lambda chance, size: faults.gzipped_on_the_way,
    "a head without end": lambda chance, size: faults.oversized_head,
    "closed after the head": lambda chance, size: faults.short_body(0),
    "short": lambda chance, size: faults.short_body(chance.randrange(size)),
    "short chunked": _cut_chunked,
    "short, until the connection ends": lambda chance, size: faults.until_close(chance.randrange(size)),
    "reset": lambda chance, size: faults.reset_body(chance.randrange(size)),
}
# These are answers that are odd and right.
ODD: dict[str, Draw] = {
    "chunked": _chunked,
    "until the connection ends": lambda chance, size: faults.until_close(),
    "trickle": lambda chance, size: faults.trickle(size // 30 + 20),
    "slow first byte": _slow_first_byte,
    "1xx before": lambda chance, size: faults.interim,
    "identity": lambda chance, size: faults.encoded("identity"),
    "closed after": lambda chance, size: faults.close_after,
    "said to be closed after": lambda chance, size: faults.connection_close,
    "surplus": lambda chance, size: _surplus_at_once,
    "twice": lambda chance, size: _twice,
}
# These take as long as whoever waits has patience.
SILENT: dict[str, Draw] = {
    "stall": lambda chance, size: faults.stall(chance.randrange(size)),
    "stall before the head": lambda chance, size: faults.stall_before_head,
}


# ---- what ends a load


@dataclass(frozen=True, slots=True)
class Fatal:
    """A fault that no other try helps against.

    Attributes:
        errors: what it may be told as.
        behave: answers the request that it happens at.
        lasts: it happens at every later request too.
        perhaps: there are loads that get over it.
        only: the scheme that has it, where not both have.
    """

    errors: tuple[type[HeadraceError], ...]
    behave: Behaviour
    lasts: bool = False
    perhaps: bool = False
    only: str = ""


def _becomes(change: Callable[[bytes], bytes] | None, *, conditions: bool = True) -> Behaviour:
    """The object is overwritten just before the answer, or removed; `conditions` False: If-Match is ignored."""

    def behave(exchange: Exchange) -> None:
        key = exchange.asked.path.removeprefix("/bucket/")
        name = key.rpartition("/")[2]
        keys = [found for found in exchange.server.objects if found.rpartition("/")[2] == name]
        if change is None:
            for found in keys:
                exchange.server.objects.pop(found)
            exchange.send(faults.error_answer(404, "NoSuchKey"))
            return
        exchange.stored = Stored.of(change(exchange.stored.data))
        for found in keys:
            exchange.server.objects[found] = exchange.stored
        if conditions:
            faults.honest(exchange)
        elif exchange.span[0] >= exchange.span[1]:
            exchange.send(faults.error_answer(416, "InvalidRange"))
        else:
            exchange.head()
            exchange.send(exchange.wanted)

    return behave


def _other_range(exchange: Exchange) -> None:
    first, end = exchange.span
    faults.content_range(f"bytes {first - 1}-{end - 2}/{len(exchange.stored.data)}")(exchange)


def _circle(exchange: Exchange) -> None:
    exchange.send(faults.error_answer(302, Location=exchange.asked.path))


def _other_total(exchange: Exchange) -> None:
    first, end = exchange.span
    faults.content_range(f"bytes {first}-{end - 1}/{len(exchange.stored.data) + 1}")(exchange)


def flipped(exchange: Exchange) -> None:
    """A bit of the body is wrong."""
    body = bytearray(exchange.wanted)
    body[len(body) // 2] ^= 16
    exchange.head()
    exchange.send(bytes(body))


def fatal_faults(replaced: Callable[[bytes], bytes]) -> Mapping[str, Fatal]:
    """By name. `replaced` makes another version of an object, of the same size."""
    changed = (Changed, Truncated)
    return {
        "forbidden": Fatal((AccessDenied,), faults.error(403, "AccessDenied"), lasts=True),
        "expired": Fatal((ExpiredCredentials,), faults.error(400, "ExpiredToken"), lasts=True, only="s3"),
        "who are you": Fatal((NoCredentials,), faults.error(401), lasts=True, only="http"),
        "gzip": Fatal((Unsupported,), faults.gzipped),
        "shifted": Fatal((Unsupported,), faults.shifted(1)),
        "no Content-Range": Fatal((Unsupported,), faults.content_range(None)),
        "wrong Content-Range": Fatal((Unsupported,), _other_range),
        "another total": Fatal((Changed,), _other_total),
        "200 for 206": Fatal((Unsupported,), faults.whole),
        "longer": Fatal((Unsupported,), faults.longer_body(7)),
        "longer chunked": Fatal((Unsupported,), faults.chunked(999, extra=b"?")),
        "duplicated": Fatal((Unsupported,), faults.duplicated),
        "duplicated chunked": Fatal((Unsupported,), faults.duplicated_chunked),
        "another ETag": Fatal((Changed,), faults.tagged('"0123456789abcdef"')),
        "replaced": Fatal(changed, _becomes(replaced)),
        "replaced, conditions ignored": Fatal(changed, _becomes(replaced, conditions=False)),
        "truncated": Fatal(changed, _becomes(lambda data: data[:-1])),
        "truncated, conditions ignored": Fatal(changed, _becomes(lambda data: data[:-1], conditions=False)),
        "grown": Fatal(changed, _becomes(lambda data: data + b"+")),
        "grown, conditions ignored": Fatal(changed, _becomes(lambda data: data + b"+", conditions=False)),
        "deleted": Fatal((Changed,), _becomes(None)),
        "another region": Fatal((WrongRegion,), faults.error(301, "PermanentRedirect"), only="s3"),
        "redirected to nowhere": Fatal((Unsupported,), faults.error(302), only="http"),
        "redirected in a circle": Fatal((Unsupported,), _circle, lasts=True, only="http"),
        "throttled for ever": Fatal((Throttled,), faults.error(503, "SlowDown"), lasts=True),
        "broken for ever": Fatal((TransientError,), faults.close_before_head, lasts=True),
        "silent for ever": Fatal((DeadlineExceeded,), faults.stall_before_head, lasts=True),
        "a bit flips": Fatal((Corrupt,), flipped, perhaps=True),
        "damaged": Fatal((Corrupt,), flipped, lasts=True),
    }


# What a load that is verified may say of an object that was replaced before it was opened.
NOT_OF_THE_MANIFEST = (Corrupt, BadManifest)
