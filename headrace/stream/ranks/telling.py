"""What goes wrong on a rank before a shared load begins: the others, who wait for it to come, are told."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.stream.ranks.group import RanksCannotMeet, torch_group
from headrace.stream.ranks.meeting import decline

_logger = logging.getLogger(__name__)


@contextmanager
def telling_peers() -> Iterator[None]:
    """Around what a rank does before it meets the others; an error of its own is theirs too (PeerFailed).

    An interrupt is told to nobody: the process is about to end, which they notice.
    """
    try:
        yield
    except Exception as error:
        group = torch_group()
        if group is not None:
            try:
                decline(group, error)
            except RanksCannotMeet as broken:  # what it could not begin by is the news, not this
                _logger.warning("%s", broken)
        raise
