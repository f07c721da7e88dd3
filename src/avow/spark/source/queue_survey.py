"""Finds the lanes of the queues that a source reads, and where a read starts and ends in each.

Ends are composed from all peers (`Queue.survey`). For a batch read the coordinators confirm them, so it sees every
write that was done before it was planned.

A time is turned into a version by binary search, which reads some twenty messages. Times are set by writers, so they
may go back; as with Kafka's time index, the result is exact only where times are in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from avow.errors import InvalidRequest, Trimmed, UnknownQueue
from avow.spark.source.options import EARLIEST, LATEST, Bound, SourceOptions
from avow.spark.source.planning import LaneId, LaneState

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient
    from avow.client.descriptions import QueueInfo
    from avow.spark.source.archive import Archive

_HALVINGS_MAX: Final = 64


class Surveyor:
    def __init__(self, client: BlockingClient, options: SourceOptions, *, archive: Archive | None = None) -> None:
        self._client, self._options, self._archive = client, options, archive

    # ------------------------------------------------------------------ lanes

    def states(self, *, confirmed: bool = False) -> list[LaneState]:
        """The present state of all lanes to read. Raises UnknownQueue."""
        return [state for name in self._names() for state in self._lanes_of(name, confirmed=confirmed)]

    def _names(self) -> Sequence[str]:
        options = self._options
        if options.assign is not None:
            return sorted(options.assign)
        if options.pattern is None:
            return sorted(options.queues)
        pattern = re.compile(options.pattern)
        return sorted(info.name for info in self._client.queues() if pattern.fullmatch(info.name))

    def _lanes_of(self, name: str, *, confirmed: bool) -> Iterator[LaneState]:
        try:
            info = self._client.queue(name).survey(confirmed=confirmed)
        except UnknownQueue as cause:
            if self._options.pattern is not None:  # the queue was deleted after it was listed
                return
            raise UnknownQueue(
                f"{self._options.servers} has no queue {name!r}; nothing was read. Create it, or correct the option "
                "that names it"
            ) from cause
        assigned = None if self._options.assign is None else self._options.assign[name]
        lanes = {lane.lane: lane for lane in info.lanes}
        if assigned is not None and not info.pubsub and (missing := sorted(set(assigned) - set(lanes))):
            raise InvalidRequest(
                f"option assign names lanes {missing} of queue {name!r}, which has lanes {sorted(lanes)}; nothing was "
                "read"
            )
        for number in sorted(lanes) if assigned is None else assigned:
            if number in lanes:
                lane = lanes[number]
                holders = _holders(info, lane.voters)
                yield LaneState(name, number, lane.trimmed_to + 1, lane.end + 1, lane.ended, holders)

    def with_archive(self, found: Sequence[LaneState]) -> list[LaneState]:
        """The lanes including their archived versions. A lane that only the archive holds counts as ended."""
        if self._archive is None:
            return list(found)
        archive, wanted = self._archive, set(self._names())
        states = {(state.queue, state.lane): state for state in found}
        for queue, lane in archive.lanes():
            assigned = self._options.assign
            if queue not in wanted or (assigned is not None and lane not in assigned[queue]):
                continue
            span = archive.span(queue, lane)
            state = states.get((queue, lane))
            if state is None:
                states[queue, lane] = LaneState(queue, lane, span.start, span.end, ended=True)
            elif span.start < state.first:
                states[queue, lane] = replace(state, first=span.start)
        return [states[key] for key in sorted(states)]

    # ------------------------------------------------------------------ starts and ends

    def starts(self, states: Sequence[LaneState]) -> tuple[dict[LaneId, int], bool]:
        """The first version to read of each lane, and whether one of them is `latest`, which would differ later."""
        bound = self._options.start
        self._check_named("startingOffsets", bound, states)
        found: dict[LaneId, int] = {}
        latest = False
        for state in states:
            wanted = _of(bound, state)
            if bound.by_time:
                version, missed = self._at_time(state, wanted)
                latest = latest or missed
            else:
                version = {EARLIEST: state.first, LATEST: state.next}.get(wanted, max(wanted, 1))
                latest = latest or wanted == LATEST
            found[state.queue, state.lane] = version
        return found, latest

    def ends(self, states: Sequence[LaneState]) -> dict[LaneId, int]:
        """The end of each lane, exclusive."""
        bound = self._options.end
        self._check_named("endingOffsets", bound, states)
        found: dict[LaneId, int] = {}
        for state in states:
            wanted = _of(bound, state)
            if wanted == LATEST:
                version = state.next
            elif bound.by_time:
                version = self._version_at(state, wanted)
            else:
                version = wanted
            if version > state.next:
                raise InvalidRequest(
                    f"option endingOffsets names {version} for lane {state.lane} of queue {state.queue!r}, whose last "
                    f"version is {state.next - 1}; nothing was read. Use latest, or wait until it exists"
                )
            found[state.queue, state.lane] = version
        return found

    def _check_named(self, option: str, bound: Bound, states: Iterable[LaneState]) -> None:
        lanes = {(state.queue, state.lane) for state in states}
        named = {(queue, lane) for queue, of_queue in bound.named.items() for lane in of_queue}
        if strangers := sorted(named - lanes):
            shown = ", ".join(f"lane {lane} of queue {queue!r}" for queue, lane in strangers)
            raise InvalidRequest(
                f"option {option}{'ByTimestamp' if bound.by_time else ''} names {shown}, which does not exist or "
                "is not selected; nothing was read"
            )

    def _at_time(self, state: LaneState, time_ms: int) -> tuple[int, bool]:
        version = self._version_at(state, time_ms)
        if version < state.next or time_ms == 0:
            return version, False
        if self._options.start_strategy == "error" and state.next > state.first:
            raise InvalidRequest(
                f"lane {state.lane} of queue {state.queue!r} has no message with the time {time_ms} or later; nothing "
                "was read. Set startingOffsetsByTimestampStrategy to latest to start at the lane's end"
            )
        return state.next, True

    def _version_at(self, state: LaneState, time_ms: int) -> int:
        """The first version whose time is not before `time_ms`; the lane's next version if there is none."""
        low, high = state.first, state.next
        if self._archive is not None:
            archived = self._archive.version_at(state.queue, state.lane, time_ms)
            if archived is not None:
                return archived
            low = max(low, self._archive.span(state.queue, state.lane).end)
        for _ in range(_HALVINGS_MAX):
            if low >= high:
                break
            middle = (low + high) // 2
            if self._time_of(state, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _time_of(self, state: LaneState, version: int) -> int:
        queue = self._client.queue(state.queue)
        pages = queue.pages(
            after=version - 1,
            lane=state.lane,
            level="at_least",
            at_least=version,
            until=version,
            max_bytes=1,
            max_count=1,
        )
        for page in pages:
            for batch in page:
                return batch.messages()[0].time_ms
        raise Trimmed(
            f"version {version} of lane {state.lane} of queue {state.queue!r} was removed while its time was looked "
            "up; nothing was read. Repeat the read"
        )


def _holders(info: QueueInfo, voters: Sequence[int]) -> tuple[int, ...]:
    return tuple(info.peers) or tuple(voters)


def _of(bound: Bound, state: LaneState) -> int:
    return bound.named.get(state.queue, {}).get(state.lane, bound.everywhere)
