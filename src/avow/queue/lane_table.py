"""The table of pub-sub lanes: the run that opened each, its voters, and where it ended.

A pub-sub lane belongs to one run of one peer. Writing to it needs no agreement, but two things do: its number, because
frames and cursors name lanes by small integers, and its end once its owner is gone, because peers with copies of
different length must stop at the same version. Both are entries of the metadata lane, so the first entry decides.

    (nothing) --open--> open --end--> ended --trimmed to its end--> forgotten
                         | a later run of the peer opens a lane, in any queue, or the peer is no longer a voter
                         `--> orphaned: nothing is appended; any peer may fence it and propose its end

The lanes of a deleted queue are forgotten at once, open or not. They can no longer be read, so no agreement on their
ends is needed, and no change of voters waits for them.

The voters of a lane are those in force at the position of its opening, for its whole life: its owner and the fence both
count quorums among them. A number is never reused. While a lane is open, the same run gets the same number for the same
route; after the lane has ended, that run gets another lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from avow.errors import Malformed
from avow.queue.commands import LaneEndCommand, LaneOpenCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Lane, Run


class LaneTable:
    """`next_number` also numbers the lanes of two-phase queues: one space of numbers for all frames."""

    __slots__ = ("by_number", "count_max", "incarnations", "next_number", "open_runs")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.next_number = 1  # 0 is the metadata lane
        self.by_number: dict[int, Lane] = {}
        self.incarnations: dict[int, int] = {}  # the latest run of each peer that opened a lane
        self.open_runs: dict[Run, int] = {}

    def take(self, count: int) -> int:
        """Reserve `count` numbers; returns the first."""
        first = self.next_number
        self.next_number += count
        return first

    def open(self, command: LaneOpenCommand, *, voters: tuple[int, ...], epoch: int) -> Outcome:
        run = (command.peer, command.incarnation, command.queue, command.route)
        if (number := self.open_runs.get(run)) is not None:
            return Outcome("", number, number)
        if command.peer not in voters or command.incarnation < self.incarnations.get(command.peer, 0):
            return Outcome("INVALID_REQUEST")
        if len(self.by_number) >= self.count_max:
            return Outcome("TOO_MANY")
        self._supersede(command.peer, command.incarnation)
        number = self.take(1)
        self.by_number[number] = Lane(number, *run, voters, epoch)
        self.open_runs[run] = number
        return Outcome("", number, number)

    def end(self, command: LaneEndCommand) -> Outcome:
        """The first committed end is final. A proposal of another end gets LANE_ENDED with the final one."""
        lane = self.by_number.get(command.lane)
        if lane is None:
            return Outcome("INVALID_REQUEST")
        if lane.ended:
            return Outcome("" if lane.end == command.end else "LANE_ENDED", 0, lane.end)
        self.open_runs.pop(lane.run, None)
        last = command.end if command.last_version is None else command.last_version
        self.by_number[lane.number] = replace(lane, end=command.end, ended_by=command.proposer, last_version=last)
        return Outcome("", 0, command.end)

    def trim(self, lane: Lane, upto: int) -> tuple[Outcome, bool]:
        """(outcome, whether the lane is forgotten now). The caller has already limited `upto` by the holds."""
        target = max(lane.trimmed_to, min(upto, lane.last_version) if lane.ended else upto)
        forgotten = lane.ended and target >= lane.last_version
        if forgotten:
            del self.by_number[lane.number]
        else:
            self.by_number[lane.number] = replace(lane, trimmed_to=target)
        return Outcome("", lane.trimmed_to + 1, target), forgotten

    def orphan(self, lost: Callable[[Lane], bool]) -> None:
        for lane in self.open_lanes():
            if lost(lane) and not lane.orphaned:
                self.by_number[lane.number] = replace(lane, orphaned=True)

    def forget_queue(self, queue: str) -> None:
        """The queue was deleted. A later queue of the same name must not get its lanes."""
        for lane in [lane for lane in self.by_number.values() if lane.queue == queue]:
            self.open_runs.pop(lane.run, None)
            del self.by_number[lane.number]

    def open_lanes(self) -> list[Lane]:
        """Lanes whose end is not decided, in the order they were opened."""
        return [lane for lane in self.by_number.values() if not lane.ended]

    def fill(self, lanes: Iterable[Lane], *, serving: Iterable[int]) -> None:
        """Fill from a snapshot. `serving`: the lanes of `open_runs`, in its order."""
        self.by_number.update((lane.number, lane) for lane in lanes)
        for number in serving:
            if number not in self.by_number:
                raise Malformed("snapshot lanes", expected=f"lane {number}", found="none of that number")
            self.open_runs[self.by_number[number].run] = number

    def _supersede(self, peer: int, incarnation: int) -> None:
        self.incarnations[peer] = incarnation
        self.orphan(lambda lane: lane.peer == peer and lane.incarnation < incarnation)
