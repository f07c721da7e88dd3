"""The subscribers of one lane and their cursors.

A cursor means "everything up to this version is processed". The same cursor may be reported twice, late, or by two
processes of one subscriber in either order, so a cursor only moves forward (the larger version wins). Moving it back is
an operator's decision and a separate option, `reset`.

A subscriber with a *hold* limits retention: nothing after its cursor may be removed. Without a hold its cursor counts
only for the rule "all subscribers have passed". A cursor beyond the lane's end is invalid, because a subscriber can
read only what was committed before its cursor was logged; such a command is refused.

The readers of a subscriber change in another lane (see `subscriptions`), so this lane does not know which reader may
move a cursor. It knows which ones may not: `epoch` is that of the last reader that took over the lane, by a command
with a higher epoch and version 0, a *fence*. A reader moves the cursor with exactly that epoch. With a lower one it was
replaced; with a higher one it has not taken over the lane yet (or the subscriber was removed since) and cannot know
where to begin reading. Both are FENCED. So the epochs divide the lane's log into ranges, and one reader moves the
cursor in each. A command without an epoch, from an operator, is never fenced and fences no reader.
"""

from __future__ import annotations

from avow.queue.commands import CursorCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Subscriber


class Subscribers:
    __slots__ = ("by_name", "count_max")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.by_name: dict[str, Subscriber] = {}

    def refusal(self, command: CursorCommand, *, end: int) -> Outcome | None:
        """The refusal, or None if the command would be performed."""
        before = self.by_name.get(command.subscriber)
        if command.epoch and _fenced(command, before.epoch if before is not None else 0):
            return Outcome("FENCED")
        if command.remove:
            return None
        if command.version > end:
            return Outcome("INVALID_REQUEST")
        if before is None and len(self.by_name) >= self.count_max:
            return Outcome("TOO_MANY")
        return None

    def perform(self, command: CursorCommand) -> Outcome:
        """Call it only if `refusal` returned None. Removing an unknown subscriber is done already."""
        name = command.subscriber
        if command.remove:
            self.by_name.pop(name, None)
            return Outcome()
        before = self.by_name.get(name, Subscriber(0, hold=False))
        version = command.version if command.reset else max(before.version, command.version)
        hold = before.hold if command.hold is None else command.hold
        self.by_name[name] = Subscriber(version, hold=hold, epoch=max(before.epoch, command.epoch))
        return Outcome("", 0, version)

    def held_at(self) -> int | None:
        """The lowest cursor with a hold: nothing after it may be removed."""
        return min((s.version for s in self.by_name.values() if s.hold), default=None)

    def passed_by_all(self) -> int:
        """The version that every subscriber has passed; 0 without subscribers, because nothing was read yet."""
        return min((s.version for s in self.by_name.values()), default=0)

    def copy(self) -> Subscribers:
        other = Subscribers(self.count_max)
        other.by_name = dict(self.by_name)
        return other


def _fenced(command: CursorCommand, epoch: int) -> bool:
    if command.epoch <= epoch:
        return command.epoch < epoch
    return bool(command.version or command.reset or command.remove)  # anything but a fence
