"""Compaction of a lane of pledges: removes finished pledges, rewrites old ones at the end, and trims the lane.

Every change of a pledge is a message, so a lane grows with the number of changes, not of pledges. When it has many more
messages than pledges, the lane's coordinator chooses a cut, rewrites every pledge whose last complete message is below
the cut (Put), and trims the lane there. A Put that was overtaken by a swap has no effect; that pledge is rewritten
again.

Only the lane's coordinator does this, and removal and rewriting exclude each other: see `table`. A failed compaction is
retried later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from avow.errors import AvowError, Offline
from avow.limits import MIB
from avow.node.answers import Done, error_of_answer
from avow.node.lane.two_phase_lane import Write
from avow.node_client import Host, ask
from avow.pledge.stores.lane.operations import Change, Forget
from avow.pledge.stores.lane.replica import LaneReplica
from avow.pledge.stores.lane.table import put_of, put_topic_of
from avow.queue.commands import TrimCommand, encode
from avow.wire.messages import Kind

MESSAGES_MIN: Final = 20_000  # a shorter lane is not compacted
MESSAGES_PER_PLEDGE: Final = 4
FORGET_COUNT: Final = 500  # in one message
PUT_COUNT: Final = 500  # in one batch
PUT_SIZE_BYTES: Final = 2 * MIB  # of payloads in one batch
_ROUNDS_MAX: Final = 8  # to repeat Puts that were overtaken

T = TypeVar("T")


def is_long(replica: LaneReplica, *, trimmed_to: int, messages_min: int = MESSAGES_MIN) -> bool:
    kept = len(replica.table.pledges) + len(replica.table.topics)
    return replica.table.applied - trimmed_to > max(messages_min, MESSAGES_PER_PLEDGE * kept)


async def forget(replica: LaneReplica, *, finished_before_ms: int, limit: int) -> int:
    """Returns the number of removed pledges. Raises Offline, Unknown."""
    forgotten = 0
    async with replica.maintenance:
        while forgotten < limit and replica.up_to_date() and replica.due_index is not None:
            count = min(FORGET_COUNT, limit - forgotten)
            gids = replica.due_index.take_finished(replica.find, before_ms=finished_before_ms, limit=count)
            if not gids:
                break
            try:
                await replica.append([Forget(tuple(gids))])
            except AvowError:
                _restore(replica, gids)
                raise
            forgotten += len(gids)
    return forgotten


def _restore(replica: LaneReplica, gids: Sequence[str]) -> None:
    for gid in gids:
        kept = replica.table.pledges.get(gid)
        if kept is not None and replica.due_index is not None:
            replica.due_index.update(kept.pledge, run=kept.run)


async def compact(host: Host, replica: LaneReplica) -> int:
    """Returns the version to which the lane was trimmed. Raises Offline, Unknown."""
    async with replica.maintenance:
        cut = replica.table.applied
        for _ in range(_ROUNDS_MAX):
            names = [(gid, True) for gid in replica.table.below(cut)]
            names += [(name, False) for name in replica.table.topics_below(cut)]
            if not names:
                break
            for some in _chunks(names, PUT_COUNT):
                await _rewrite(replica, some, cut)
        upto = min(cut, replica.table.trim_limit())
        return await _trim(host, replica, upto)


async def _rewrite(replica: LaneReplica, names: Sequence[tuple[str, bool]], cut: int) -> None:
    """`names`: (name, True) for a pledge, (name, False) for a topic. Each Put is made right before it is appended."""
    waiting = list(names)
    while waiting:
        if not replica.up_to_date():
            raise Offline("this peer no longer coordinates the lane of pledges; nothing was changed")
        changes: list[Change] = []
        size = 0
        while waiting and size < PUT_SIZE_BYTES:
            name, is_pledge = waiting.pop()
            if is_pledge:
                kept = replica.table.pledges.get(name)
                if kept is not None and kept.base <= cut:
                    changes.append(put_of(kept))
                    size += sum(len(branch.payload) for branch in kept.pledge.content.branches)
            elif (topic := replica.table.topics[name]).base <= cut:
                changes.append(put_topic_of(topic))
        if changes:
            await replica.append(changes)


async def _trim(host: Host, replica: LaneReplica, upto: int) -> int:
    write = Write(Kind.TRIM, os.urandom(16), created_ms=host.now_ms(), control=encode(TrimCommand(upto)))
    answer = await ask(host, lambda request: host.node.write(request, replica.number, write, host.now()))
    if not isinstance(answer, Done):
        raise error_of_answer(answer)
    return answer.last_version


def _chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
