"""The catalog: the queues by name, the cursors of pub-sub queues, and the subscriptions of all queues.

A queue is a name, a replication strategy, a number of lanes and retention rules. The first three never change: a
message's lane is the hash of its key modulo the number of lanes, and the strategies have different logs. A two-phase
queue gets its lanes at creation, with consecutive numbers. A pub-sub queue has as many routes, and each run of a peer
opens a lane of its own for each.

Cursors of a two-phase lane are in that lane. A subscriber of a pub-sub queue reads lanes that are opened and removed
with their owners, so its cursor is a vector {lane: version} and is kept here. Each component only grows, so two reports
may arrive in either order. Only a reset replaces the whole vector.

The readers of a subscriber are kept here for both strategies (`subscriptions`). A pub-sub queue's cursors move in the
same log in which their readers change, so a fence needs no state of its own here: a move that names an epoch is
accepted if the subscription has that epoch at this position of the log, and every lane it names belongs to its member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from avow.queue import subscriptions
from avow.queue.commands import LaneCursorsCommand, QueueCommand, SubscriptionCommand
from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.lane_table import LaneTable
from avow.queue.records import Lane, Member, Queue, Subscription, VectorCursor


class Catalog:
    __slots__ = ("by_name", "count_max", "members_max", "subscribers_max", "subscriptions_max")

    def __init__(self, *, count_max: int, subscribers_max: int, subscriptions_max: int, members_max: int) -> None:
        self.count_max = count_max
        self.subscribers_max = subscribers_max
        self.subscriptions_max = subscriptions_max
        self.members_max = members_max
        self.by_name: dict[str, Queue] = {}

    def perform(self, command: QueueCommand, lanes: LaneTable, voters: tuple[int, ...] = ()) -> Outcome:
        queue = self.by_name.get(command.name)
        if command.action == "create":
            return self._create(command, lanes, voters) if queue is None else _again(command, queue)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        if command.action == "change":
            self.by_name[queue.name] = replace(queue, retention=command.retention)
            return DONE
        del self.by_name[queue.name]
        lanes.forget_queue(queue.name)
        return DONE

    def by_lane(self) -> dict[int, Queue]:
        """The two-phase queue that each of their lanes belongs to."""
        return {
            queue.first_lane + index: queue
            for queue in self.by_name.values()
            if queue.strategy == "two-phase"
            for index in range(queue.lanes)
        }

    def open_refusal(self, name: str, route: int) -> Outcome | None:
        """Why a lane cannot be opened for this queue, or None. An empty name: a lane that belongs to no queue."""
        if not name:
            return None
        queue = self.by_name.get(name)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        fits = queue.strategy == "pub-sub" and route < queue.lanes
        return None if fits else Outcome("INVALID_REQUEST")

    def move_cursor(self, command: LaneCursorsCommand, lanes: LaneTable) -> Outcome:
        queue = self.by_name.get(command.queue)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        if command.epoch and not _reads(queue.subscriptions.get(command.subscriber), command):
            return Outcome("FENCED")
        if command.remove:
            queue.subscribers.pop(command.subscriber, None)
            return DONE
        before = queue.subscribers.get(command.subscriber)
        if before is None and len(queue.subscribers) >= self.subscribers_max:
            return Outcome("TOO_MANY")
        if queue.strategy != "pub-sub" or not all(_readable(queue, lanes, *pair) for pair in command.versions):
            return Outcome("INVALID_REQUEST")
        queue.subscribers[command.subscriber] = _moved(before or VectorCursor(), command, lanes.by_number)
        return DONE

    def subscribe(self, command: SubscriptionCommand, *, epoch: int) -> Outcome:
        """`epoch`: higher than all earlier ones; it becomes the subscription's epoch if the command changes it."""
        if command.action == "forget":
            for queue in self.by_name.values():
                subscriptions.forget(queue.subscriptions, command.peer, epoch=epoch)
            return DONE
        named = self.by_name.get(command.queue)
        if command.action == "leave":
            if named is not None:
                subscriptions.leave(named.subscriptions, command, epoch=epoch)
            return DONE
        if named is None:
            return Outcome("UNKNOWN_QUEUE")
        known = command.subscriber in named.subscriptions
        if not known and len(named.subscriptions) >= self.subscriptions_max:
            return Outcome("TOO_MANY")
        return subscriptions.join(named.subscriptions, command, epoch=epoch, members_max=self.members_max)

    def readers(self) -> Iterator[tuple[str, str, Member]]:
        """(queue, subscriber, member) for every member of every subscription."""
        for queue in self.by_name.values():
            for subscriber, subscription in queue.subscriptions.items():
                for member in subscription.members:
                    yield queue.name, subscriber, member

    def held_at(self, lane: Lane) -> int | None:
        """The lowest cursor with a hold in this lane; 0 for a subscriber with a hold that has not read it."""
        queue = self.by_name.get(lane.queue)
        cursors = queue.subscribers.values() if queue else ()
        return min((c.versions.get(lane.number, 0) for c in cursors if c.hold), default=None)

    def forget_lane(self, lane: Lane) -> None:
        queue = self.by_name.get(lane.queue)
        for cursor in queue.subscribers.values() if queue else ():
            cursor.versions.pop(lane.number, None)

    def _create(self, command: QueueCommand, lanes: LaneTable, voters: tuple[int, ...]) -> Outcome:
        if len(self.by_name) >= self.count_max:
            return Outcome("TOO_MANY")
        peers = tuple(sorted(set(command.peers)))
        if not set(peers) <= set(voters) or (command.strategy == "pub-sub" and (peers or command.lanes > 1)):
            return Outcome("INVALID_REQUEST")  # a pub-sub queue has a lane for each voter, no more and no fewer
        first = lanes.take(command.lanes)
        founders = (peers or voters) if command.strategy == "two-phase" else ()
        queue = Queue(
            command.name, command.strategy, command.lanes, first, command.retention, {}, peers=peers, founders=founders
        )
        self.by_name[queue.name] = queue
        return _numbers(queue)


def _again(command: QueueCommand, queue: Queue) -> Outcome:
    """Creating a queue again with the same settings is done; with other settings it is ALREADY_EXISTS."""
    asked = (command.strategy, command.lanes, command.retention, tuple(sorted(set(command.peers))))
    same = asked == (queue.strategy, queue.lanes, queue.retention, queue.peers)
    return _numbers(queue) if same else Outcome("ALREADY_EXISTS")


def _numbers(queue: Queue) -> Outcome:
    return Outcome("", queue.first_lane, queue.first_lane + queue.lanes - 1)


def _reads(subscription: Subscription | None, command: LaneCursorsCommand) -> bool:
    """Whether the command has the subscription's epoch and all its lanes belong to its member."""
    if subscription is None or subscription.epoch != command.epoch:
        return False
    readers = (subscriptions.reader_of(subscription, lane) for lane, _ in command.versions)
    return all(reader is not None and reader.name == command.member for reader in readers)


def _readable(queue: Queue, lanes: LaneTable, number: int, version: int) -> bool:
    """Whether a cursor may be at this version. A removed lane is accepted and ignored: its reader is only late."""
    lane = lanes.by_number.get(number)
    if lane is None:
        return number < lanes.next_number
    return lane.queue == queue.name and (not lane.ended or version <= lane.last_version)


def _moved(before: VectorCursor, command: LaneCursorsCommand, known: Mapping[int, Lane]) -> VectorCursor:
    versions = {} if command.reset else dict(before.versions)
    for lane, version in command.versions:
        if lane in known:
            versions[lane] = max(versions.get(lane, 0), version)
    return VectorCursor(versions, before.hold if command.hold is None else command.hold)
