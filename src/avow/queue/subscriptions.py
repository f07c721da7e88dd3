"""Subscriptions: which member reads which lanes for a subscriber, by epoch.

A subscriber is a name with a cursor. Its readers are channels that end at different peers, are opened and closed, and
may be replaced while their peer is cut off and does not know it. No version may be committed by two of them. So the
metadata lane decides on readers as it does on queues. Each change has a number, the *epoch*: the position of the entry
that made it, which only grows and is never reused, even after all members have left. The lanes of a member follow from
the members alone, so an epoch determines the reader of each lane.

    join, no name     takeover: this reader and no other
    join, a name      one more member; replaces one of the same name, and a reader without a name
    leave             removes the member if it still has the same channel
    forget            removes every member at a peer that is gone or silent

A reader may learn of a change late. A fence, not its knowledge, keeps it from moving cursors that belong to another
reader by then. The reader's part of this, for the reasons in docs/decisions/0013:

    two-phase   It takes over a lane with a fence (`CursorCommand`, version 0, the epoch of its subscription), reads
                after the version in the answer, and moves the cursor with that same epoch while the lane is its own,
                even if later epochs follow. FENCED: another reader was in between. If the lane is its own as far as
                its peer knows now, it takes it over again with the current epoch; otherwise it waits until its peer
                knows more, or ends.
    pub-sub     It reads after the cursor that its peer knows as of the epoch, and moves cursors with the current epoch.
                When the epoch changes, it continues with the lanes it has `kept` and restarts all others.

To restart a lane is to forget what was delivered and not committed, and to read after the cursor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from avow.limits import CHANNEL_ID_SIZE_BYTES
from avow.queue.commands import SubscriptionCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Member, Subscription

Subscriptions: TypeAlias = dict[str, Subscription]  # by subscriber


# ------------------------------------------------------------------ readers and lanes


def reader_of(subscription: Subscription, lane: int) -> Member | None:
    """`lane`: its index in a two-phase queue, from 0; its number in a pub-sub queue."""
    members = subscription.members
    return members[lane % len(members)] if members else None


def lanes_of(subscription: Subscription, member: str, lanes: Iterable[int]) -> tuple[int, ...]:
    """Those of `lanes` that this member reads, in the same order; empty if it is no member or there are too many."""
    names = [each.name for each in subscription.members]
    if member not in names:
        return ()
    index = names.index(member)
    return tuple(lane for lane in lanes if lane % len(names) == index)


def kept(earlier: Subscription, later: Subscription, lane: int) -> bool:
    """Whether the lane had the same reader from the earlier epoch to the later. False if these two cannot tell."""
    known = later.epoch == earlier.epoch or later.before == earlier.epoch
    reader, heir = reader_of(earlier, lane), reader_of(later, lane)
    return known and reader is not None and reader == heir


# ------------------------------------------------------------------ changes


def join(table: Subscriptions, command: SubscriptionCommand, *, epoch: int, members_max: int) -> Outcome:
    """A repeated join changes nothing and returns the existing epoch."""
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
