"""What the coordinator knows of one other peer's log.

    match     stored and synced there under my ballot, by a stamped peer: what counts towards a quorum
    next      equal to mine up to here, as far as I know: where sending goes on
    sent_to   what is on its way; between next and sent_to lies what is in flight
    probing   one message at a time, because the last one was not continued; streaming otherwise

`next` may move without `match`: a peer that does not hold the whole take-over log yet is fed but not counted.
"""

from __future__ import annotations

from typing import Final

PROBING: Final = True


class Progress:
    __slots__ = ("match", "next", "peer", "probing", "sent_to", "stalled_ticks", "stamped")

    def __init__(self, peer: int, *, next_: int) -> None:
        self.peer = peer
        self.match = 0
        self.next = next_
        self.sent_to = next_
        self.stamped = False
        self.probing = PROBING
        self.stalled_ticks = 0

    def ready(self, matched_to: int, *, stamped: bool) -> bool:
        """The peer answered; True when its counted copy grew."""
        self.stalled_ticks = 0
        if matched_to >= self.sent_to:
            self.probing = False
        if matched_to > self.next:
            self.next = matched_to
            if matched_to > self.sent_to:
                self.sent_to = matched_to
        if not stamped:
            return False
        self.stamped = True
        if matched_to <= self.match:
            return False
        self.match = matched_to
        return True

    def step_back(self, to: int) -> bool:
        """The peer's log does not continue at what was sent; False when this is already known and being handled."""
        if self.probing and self.next == to and not self.stalled_ticks:
            return False
        self.next = self.sent_to = to
        self.probing = PROBING
        self.stalled_ticks = 0
        return True
