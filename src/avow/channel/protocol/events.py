"""The values of a channel's end: pending messages, the events its core reports, its bounds, and runs of commits."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from avow import limits
from avow.channel.protocol.frames import Buffer, EndCode

Fate: TypeAlias = Literal["delivered", "unknown", "unsent"]
VALUE_OVERHEAD_BYTES: Final = 64  # memory that an empty value takes, so that limits in bytes also bound empty values


class Pending(Struct, frozen=True):
    """A message that is not covered by an acknowledged commit.

    `fate`: "delivered": the other end received it; "unknown": it was sent, and the other end may have received it;
    "unsent": the other end did not receive it. `commit` is the first commit that covers it, 0 if none was issued.
    """

    number: int
    value: Buffer
    fate: Fate
    commit: int = 0


class Messages(Struct, frozen=True):
    """Values are slices of the packet they arrived in."""

    first: int
    values: list[memoryview]


class CommitDelivered(Struct, frozen=True, gc=False):
    id: int
    upto: int


class CommitAcked(Struct, frozen=True, gc=False):
    """This commit and all older ones are acknowledged."""

    id: int


class Suspended(Struct, frozen=True, gc=False):
    pass


class Resumed(Struct, frozen=True, gc=False):
    pass


class Connected(Struct, frozen=True, gc=False):
    """Both Hellos were exchanged on the socket of this generation."""

    generation: int


class Ended(Struct, frozen=True):
    """The channel has ended permanently. `remote`: the other end ended it. `pending` is handed back only here."""

    code: EndCode
    name: str
    text: str
    remote: bool
    pending: list[Pending]


Event: TypeAlias = Messages | CommitDelivered | CommitAcked | Suspended | Resumed | Connected | Ended


class Bounds(Struct, frozen=True, gc=False, kw_only=True):
    """`pending_*`: the limit at which this end's sender is suspended. `cap_*`: how much this end accepts as a receiver
    beyond the last commit it acknowledged."""

    pending_count: int = limits.CHANNEL_PENDING_COUNT
    pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES
    cap_count: int = limits.CHANNEL_CAP_COUNT
    cap_bytes: int = limits.CHANNEL_CAP_SIZE_BYTES


# ---------------------------------------------------------------------- runs of commits


class DeliveredRun(Struct, gc=False):
    """Commits `first` to `last`, which arrived at one place: after message `upto`, `size_bytes` into the stream."""

    first: int
    last: int
    upto: int
    size_bytes: int


class SentRun(Struct, gc=False):
    """Commits `first` to `last`, all of which cover the messages up to `upto`."""

    first: int
    last: int
    upto: int
