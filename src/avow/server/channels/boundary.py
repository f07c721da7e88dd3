"""The error boundary of channels: an error in a channel's work does not end the peer.

Answers of the node and timers call channel code in the middle of the peer's own work. An AvowError ends the channel and
is sent to its client. An unexpected error also ends the channel, and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel

log: Final = logging.getLogger("avow.channels")


def guarded(channel: Channel, work: Callable[..., None], *arguments: Any) -> None:
    if channel.ended:
        return
    try:
        work(*arguments)
    except AvowError as error:
        channel.fail(error)
    except Exception:
        log.exception("internal error in a channel, which is closed now: %s", work)
        channel.fail(AvowError("internal error of this peer; what was not acknowledged may have taken effect"))
