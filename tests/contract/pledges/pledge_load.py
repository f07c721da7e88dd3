"""Work on pledges that can be interrupted anywhere, and what must be true of them afterwards.

Each task works on pledges of its own, one after the other: insert, claim, and four swaps, each of which adds one to
`failures`. So the revision of a pledge says how many swaps were made and `failures` how many are counted: they differ
if one was lost or made twice. Every acknowledged operation is written to the notes before anything else happens.

Run as a program it notes on its standard output, one line for each yes, until it is killed:

    python pledge_load.py <url of the place> <name>
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace
from tests.contract.pledges.pledge_places import LEASE_MS, NOW_MS, pledge, store_of

from avow.errors import AvowError, Refused
from avow.pledge.record import Pledge
from avow.pledge.store import PledgeStore

SWAPS = 4
_PAUSE_S = 0.02


@dataclass
class Notes:
    """By gid, the highest acknowledged revision and fence."""

    revisions: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    definite: int = 0
    unknown: int = 0

    def note(self, gid: str, revision: int, fence: int) -> None:
        self.revisions[gid], self.fences[gid] = revision, fence

    @property
    def yes(self) -> int:
        return sum(self.revisions.values()) + sum(self.fences.values())


async def work(store: PledgeStore, name: str, confirm: Callable[[str, int, int], None], notes: Notes) -> None:
    """One task; until it is cancelled."""
    number = 0
    while True:
        number += 1
        gid = f"{name}-{number}"
        now = await _insert(store, gid, notes)
        confirm(gid, now.revision, now.fence)
        now = await _claim(store, now, name, notes)
        confirm(gid, now.revision, now.fence)
        for _ in range(SWAPS):
            now = await _swap(store, now, notes)
            confirm(gid, now.revision, now.fence)


async def _insert(store: PledgeStore, gid: str, notes: Notes) -> Pledge:
    asked = pledge(gid)
    doubtful = False
    while True:
        try:
            known = await store.insert(asked)
        except AvowError as error:
            doubtful |= await _failed(error, notes)
            continue
        assert known is None or (doubtful and known == asked), f"{gid} was stored by an insert that was refused"
        return asked


async def _claim(store: PledgeStore, before: Pledge, owner: str, notes: Notes) -> Pledge:
    """An owner may claim again what it has: only the fence shows whether a claim without an answer was made."""
    most = before.fence
    while True:
        try:
            most += 1
            claimed = await store.claim_one(before.gid, owner=owner, now_ms=NOW_MS, lease_ms=LEASE_MS)
        except AvowError as error:
            most -= not await _failed(error, notes)
            continue
        assert claimed is not None
        assert before.fence < claimed.fence <= most, f"{before.gid} was claimed by a claim that was refused"
        return claimed


async def _swap(store: PledgeStore, before: Pledge, notes: Notes) -> Pledge:
    wanted = replace(before.progress, failures=before.progress.failures + 1)
    while True:
        try:
            after = await store.swap(before, wanted)
        except AvowError as error:
            doubtful = await _failed(error, notes)
        else:
            assert after is not None, f"nobody else works on {before.gid}"
            return after
        found = await _load(store, before.gid)
        if found != before:
            assert doubtful, f"{before.gid} was changed by a swap that was refused"
            assert (found.revision, found.progress) == (before.revision + 1, wanted)
            return found


async def _load(store: PledgeStore, gid: str) -> Pledge:
    while True:
        try:
            found = await store.load(gid)
        except Refused:  # a read is never in doubt
            await asyncio.sleep(_PAUSE_S)
            continue
        assert found is not None, f"{gid} is gone"
        return found


async def _failed(error: AvowError, notes: Notes) -> bool:
    """Whether it may have happened."""
    if not error.retriable:
        raise error
    notes.definite += error.definite
    notes.unknown += not error.definite
    await asyncio.sleep(_PAUSE_S)
    return not error.definite


async def check(store: PledgeStore, notes: Notes) -> None:
    """Everything that was answered is there, and nothing was done twice."""
    for gid, revision in notes.revisions.items():
        found = await store.load(gid)
        assert found is not None, f"{gid} was acknowledged and is gone"
        assert found.revision in (revision, revision + 1), (
            f"{gid}: {revision} was acknowledged, {found.revision} stored"
        )
        assert found.progress.failures == found.revision - 1, f"{gid}: a swap was made twice or lost"
        assert found.fence >= notes.fences[gid], f"{gid}: a claim was lost"


async def _main(url: str, name: str) -> None:
    store = store_of(url)
    await store.start()

    def confirm(gid: str, revision: int, fence: int) -> None:
        os.write(1, f"{gid} {revision} {fence}\n".encode())

    await asyncio.gather(*(work(store, f"{name}-{n}", confirm, Notes()) for n in range(32)))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
