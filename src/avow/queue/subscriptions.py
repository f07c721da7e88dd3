"""Who reads which lanes for a subscriber, and from when on.

A subscriber is a name with a cursor. Behind the name are readers: channels that end at different peers, come and go,
and are replaced while the peer they end at is cut off and does not know. No version may be committed by two of them. So
readers are agreed upon like queues are, in the metadata lane; each change has a number, the *epoch* (the position of
the entry that made it: it only grows, and is never given out twice, also not when everybody has left); and which lanes
a member reads follows from the members and nothing else. Whoever knows an epoch knows the reader of each lane in it.

    join, no name     takeover: this reader and no other
    join, a name      one more member; replaces one of the same name, and a reader without a name
    leave             the member, if it is still there with the same channel
    forget            every member at a peer that is gone or silent

A reader may hear of a change late. What keeps it from moving cursors that are another's by then is a fence, not its
knowledge. Its own part of that, which docs/decisions/0013 argues for:

    two-phase   It takes a lane over by a fence (`CursorCommand`, version 0, the epoch of its subscription), reads after
                the version the answer names, and moves the cursor with that same epoch as long as the lane is its own,
                whatever epochs follow. FENCED: somebody was in between. If the lane is its own by what its peer knows
                now, it takes it over anew, with the present epoch; else it waits until its peer knows more, or ends.
    pub-sub     It reads after the cursor that its peer knows as of the epoch, and moves cursors with the present epoch.
                When that changes it goes on with the lanes it has `kept`, and begins anew with all others.

To begin anew is to forget what was delivered and not committed, and to read after the cursor found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from avow.limits import CHANNEL_ID_SIZE_BYTES
from avow.queue.commands import SubscriptionCommand
from avow.queue.outcomes import Outcome


class Member(Struct, frozen=True, array_like=True, gc=False):
    """A reader. `name` is empty for one that reads alone; `epoch` is the one it joined with."""

    name: str
    peer: int
    channel: bytes
    epoch: int


class Subscription(Struct, frozen=True, array_like=True, gc=False):
    """`members` has one or more, in the order of their names. `before` is the epoch that this one followed, or 0."""

    epoch: int
    members: tuple[Member, ...]
    before: int = 0


Subscriptions: TypeAlias = dict[str, Subscription]  # by subscriber


# ------------------------------------------------------------------ who reads what


def reader_of(subscription: Subscription, lane: int) -> Member | None:
    """`lane`: its place in a two-phase queue, from 0; its number in a pub-sub queue."""
    members = subscription.members
    return members[lane % len(members)] if members else None


def lanes_of(subscription: Subscription, member: str, lanes: Iterable[int]) -> tuple[int, ...]:
    """Those of `lanes` that this member reads, in the same order. None, if there are more members than lanes."""
    names = [each.name for each in subscription.members]
    if member not in names:
        return ()
    index = names.index(member)
    return tuple(lane for lane in lanes if lane % len(names) == index)


def kept(earlier: Subscription, later: Subscription, lane: int) -> bool:
    """The lane had one reader from the one epoch to the other. Also False if that cannot be told from these two."""
    known = later.epoch == earlier.epoch or later.before == earlier.epoch
    reader, heir = reader_of(earlier, lane), reader_of(later, lane)
    return known and reader is not None and reader == heir


# ------------------------------------------------------------------ changes


def join(table: Subscriptions, command: SubscriptionCommand, *, epoch: int, members_max: int) -> Outcome:
    """Done twice it is done once: what is already so keeps its epoch."""
    if not command.subscriber or len(command.channel) != CHANNEL_ID_SIZE_BYTES:
        return Outcome("INVALID_REQUEST")
    before = table.get(command.subscriber)
    members = before.members if before is not None else ()
    if before is not None and any(_same(member, command) for member in members):
        return Outcome("", 0, before.epoch)
    others = [member for member in members if command.member and member.name not in ("", command.member)]
    if len(others) >= members_max:
        return Outcome("TOO_MANY")
    _change(table, command.subscriber, [*others, _member(command, epoch)], epoch=epoch)
    return Outcome("", 0, epoch)


def leave(table: Subscriptions, command: SubscriptionCommand, *, epoch: int) -> None:
    before = table.get(command.subscriber)
    members = before.members if before is not None else ()
    others = [m for m in members if (m.name, m.channel) != (command.member, command.channel)]
    if len(others) < len(members):
        _change(table, command.subscriber, others, epoch=epoch)


def forget(table: Subscriptions, peer: int, *, epoch: int) -> None:
    for subscriber, before in list(table.items()):
        others = [member for member in before.members if member.peer != peer]
        if len(others) < len(before.members):
            _change(table, subscriber, others, epoch=epoch)


def _change(table: Subscriptions, subscriber: str, members: list[Member], *, epoch: int) -> None:
    before = table.pop(subscriber) if not members else table.get(subscriber)
    if members:
        ordered = tuple(sorted(members, key=lambda member: member.name))
        table[subscriber] = Subscription(epoch, ordered, before.epoch if before is not None else 0)


def _same(member: Member, command: SubscriptionCommand) -> bool:
    return (member.name, member.channel, member.peer) == (command.member, command.channel, command.peer)


def _member(command: SubscriptionCommand, epoch: int) -> Member:
    return Member(command.member, command.peer, command.channel, epoch)
