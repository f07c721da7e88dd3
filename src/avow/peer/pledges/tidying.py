"""Keeping a lane of pledges short: what is finished for long is forgotten, what is old is written again and trimmed.

Every change of a pledge is a message, so a lane grows with what happens and not with what there is. When there is much
more of it than of pledges, the coordinator chooses a cut, writes every pledge again whose last whole message lies below
it (Put), and trims the lane there. A Put that a swap has overtaken does nothing; that pledge is written once more.

Both need the lane's coordinator, and one waits for the other: see `lane_table`. What fails here is tried again later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from avow.errors import AvowError, Offline
from avow.limits import MIB
from avow.peer.answers import Done
from avow.peer.http.errors import error_of_answer
from avow.peer.lane import Write
from avow.peer.pledges.host import Host, ask
from avow.peer.pledges.lane_desk import LaneDesk
from avow.peer.pledges.lane_table import put_of, put_topic_of
from avow.peer.pledges.operations import Change, Forget
from avow.queue.commands import TrimCommand, encode
from avow.wire.messages import Kind

MESSAGES_MIN: Final = 20_000  # a lane is not looked at before it has so many
MESSAGES_PER_PLEDGE: Final = 4
FORGET_COUNT: Final = 500  # in one message
PUT_COUNT: Final = 500  # in one batch,
PUT_SIZE_BYTES: Final = 2 * MIB  # of so many bytes of payloads at most
_ROUNDS_MAX: Final = 8  # of Puts that were overtaken

T = TypeVar("T")


def is_long(desk: LaneDesk, *, trimmed_to: int, messages_min: int = MESSAGES_MIN) -> bool:
    kept = len(desk.table.pledges) + len(desk.table.topics)
    return desk.table.applied - trimmed_to > max(messages_min, MESSAGES_PER_PLEDGE * kept)


async def forget(desk: LaneDesk, *, finished_before_ms: int, limit: int) -> int:
    """How many. Raises Offline, Unknown."""
    forgotten = 0
    async with desk.tidying:
        while forgotten < limit and desk.up_to_date() and desk.agenda is not None:
            count = min(FORGET_COUNT, limit - forgotten)
            gids = desk.agenda.take_finished(desk.find, before_ms=finished_before_ms, limit=count)
            if not gids:
                break
            try:
                await desk.append([Forget(tuple(gids))])
            except AvowError:
                _note_again(desk, gids)
                raise
            forgotten += len(gids)
    return forgotten


def _note_again(desk: LaneDesk, gids: Sequence[str]) -> None:
    for gid in gids:
        kept = desk.table.pledges.get(gid)
        if kept is not None and desk.agenda is not None:
            desk.agenda.note(kept.pledge, run=kept.run)


async def compact(host: Host, desk: LaneDesk) -> int:
    """The version that the lane was trimmed to. Raises Offline, Unknown."""
    async with desk.tidying:
        cut = desk.table.applied
        for _ in range(_ROUNDS_MAX):
            names = [(gid, True) for gid in desk.table.below(cut)]
            names += [(name, False) for name in desk.table.topics_below(cut)]
            if not names:
                break
            for some in _chunks(names, PUT_COUNT):
                await _put_again(desk, some, cut)
        upto = min(cut, desk.table.trim_limit())
        return await _trim(host, desk, upto)


async def _put_again(desk: LaneDesk, names: Sequence[tuple[str, bool]], cut: int) -> None:
    """`names` of pledges (True) and topics. Made from the table at the very moment they are appended."""
    waiting = list(names)
    while waiting:
        if not desk.up_to_date():
            raise Offline("this peer does not coordinate the lane of pledges any more; nothing was changed")
        changes: list[Change] = []
        size = 0
        while waiting and size < PUT_SIZE_BYTES:
            name, is_pledge = waiting.pop()
            if is_pledge:
                kept = desk.table.pledges.get(name)
                if kept is not None and kept.base <= cut:
                    changes.append(put_of(kept))
                    size += sum(len(branch.payload) for branch in kept.pledge.content.branches)
            elif (topic := desk.table.topics[name]).base <= cut:
                changes.append(put_topic_of(topic))
        if changes:
            await desk.append(changes)


async def _trim(host: Host, desk: LaneDesk, upto: int) -> int:
    write = Write(Kind.TRIM, os.urandom(16), created_ms=host.now_ms(), control=encode(TrimCommand(upto)))
    answer = await ask(host, lambda request: host.node.write(request, desk.number, write, host.now()))
    if not isinstance(answer, Done):
        raise error_of_answer(answer)
    return answer.last_version


def _chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
