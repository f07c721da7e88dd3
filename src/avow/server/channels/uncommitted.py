"""The memory of a peer for messages that wait for the commit after them, shared by its channels.

A channel takes up to CHANNEL_CAP_SIZE_BYTES beyond its last acknowledged commit, so a few dozen channels that never
commit could fill a peer's memory. Beyond a bound for all of them, the channel that holds the most is refused: it is the
one whose end frees the most, and a channel that commits often is never it.

Reading more slowly would not help: what is held is only freed by a commit that has not arrived yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avow.errors import Busy

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel


class UncommittedMessages:
    def __init__(self, *, size_bytes_max: int) -> None:
        self.size_bytes, self.size_bytes_max = 0, size_bytes_max
        self._held: dict[Channel, int] = {}

    def hold(self, channel: Channel, size_bytes: int) -> None:
        self._held[channel] = self._held.get(channel, 0) + size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self.size_bytes_max:
            self._refuse(max(self._held, key=self._held.__getitem__))

    def release(self, channel: Channel) -> None:
        self.size_bytes -= self._held.pop(channel, 0)

    def _refuse(self, channel: Channel) -> None:
        size_bytes = self._held[channel]
        self.release(channel)
        channel.fail(
            Busy(
                f"the channels of this peer hold more than {self.size_bytes_max} bytes without a commit, and this one, "
                f"with {size_bytes}, the most of them; nothing sent after its last commit was stored. Send that again, "
                "and commit more often"
            )
        )
