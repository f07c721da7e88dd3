"""Where a channel's work on a peer may fail without taking the peer with it.

Answers of the node and timers call back in the middle of a peer's own work. An error that is a channel's ends that
channel, and tells its client so; one that nobody foresaw does the same and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError
from avow.peer.answers import Answer, Lost, Refusal

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel

log: Final = logging.getLogger("avow.channels")

#: What passes by itself: a coordinator is being found, a disk is being freed, an earlier change is on its way.
PASSING: Final = frozenset({"OFFLINE", "NOT_COORDINATOR", "BUSY", "DISK_FULL", "MEMBERSHIP_BUSY"})


def guarded(channel: Channel, work: Callable[..., None], *arguments: Any) -> None:
    if channel.ended:
        return
    try:
        work(*arguments)
    except AvowError as error:
        channel.fail(error)
    except Exception:
        log.exception("a channel failed: %s", work)
        channel.fail(AvowError("this peer failed at the channel; what was not acknowledged may have taken effect"))


def is_passing(answer: Answer) -> bool:
    """Worth asking again, with the same write id."""
    return isinstance(answer, Lost) or (isinstance(answer, Refusal) and answer.code in PASSING)
