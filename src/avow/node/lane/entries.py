"""Reads the entries of a queue's lane by position: from memory, the lane's storage, or its history.

The history is what this peer copies after it installed another peer's snapshot (`backfill`). A read of an entry that
is not copied yet is refused; other peers have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from avow.errors import AvowError, InvalidRequest, Offline, StorageDamaged
from avow.limits import ENQUEUE_SIZE_BYTES_MAX
from avow.node.backfill import Backfill
from avow.replication.effects import LaneImage
from avow.replication.pieces import one_frame, within
from avow.replication.two_phase.core import TwoPhaseCore
from avow.replication.two_phase.state import Read
from avow.wire.messages import Entry, LaneFetch, LaneFetched


class LaneHistory:
    def __init__(
        self,
        core: TwoPhaseCore,
        *,
        image: LaneImage | None,
        read: Read | None,
        main: Read | None,
        needed_from: Callable[[], int],
        missing_upto: int = 0,
        on_damage: Callable[[], None] | None = None,
    ) -> None:
        """`main` reads the lane's own storage, `read` its history. `needed_from()`: the first entry that may be
        read. `missing_upto`: of the entries up to there, the lane's own storage lacks some. `on_damage` is called when
        a read found damage, and `wake_at` says now when to fetch the entries again."""
        self._on_damage = on_damage
        self._core, self._main, self._needed_from = core, main, needed_from
        self._backfill = Backfill(
            lane=core.lane,
            image=image,
            read=read if main is not None else None,
            main=main,
            snapshot_at=core.log.base,
            needed_from=needed_from(),
            missing_upto=missing_upto,
        )
        self._keep()

    # ------------------------------------------------------------------ reading

    def entries(self, after: int, max_entries: int, max_bytes: int = ENQUEUE_SIZE_BYTES_MAX) -> tuple[Entry, ...]:
        """Committed entries that follow `after` without a gap: at least one if there is one, otherwise within the
        bounds.

        Raises Offline for entries that are still being copied, Trimmed for deleted ones, StorageDamaged.
        """
        log = self._core.log
        limit = min(max_entries, self._core.committed - after)
        if limit <= 0:
            return ()
        found = log.slice(after, limit) if after >= log.base else self._older(after, min(limit, log.base - after))
        return within(found, max_bytes)

    def read_entry(self, position: int) -> Entry:
        """A committed entry. Raises as `entries` does."""
        found = self.entries(position - 1, 1)
        if not found:
            raise InvalidRequest(
                f"position {position} is not committed on this peer; the lane's cursor is {self._core.committed}. "
                "Read an earlier position, or retry"
            )
        return found[0]

    def peek(self, position: int) -> tuple[Entry, bool, tuple[int, ...]] | None:
        """An entry by position, committed or not: (entry, committed, peers that stored it)."""
        log, committed = self._core.log, self._core.committed
        if position > log.base:
            entry = log.find(position)
        else:
            entry = self.read_entry(position) if self._main is not None and position > 0 else None
        return None if entry is None else (entry, position <= committed, self._core.stored_by(position))

    def _older(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """From storage: the lane's own, or its history."""
        backfill = self._backfill
        try:
            if self._main is not None and after >= backfill.main_base:
                return tuple(self._main(after, max_entries))
            if backfill.read is not None and backfill.holds(after + 1):
                return tuple(backfill.read(after, min(max_entries, backfill.durable_end - after)))
        except StorageDamaged:
            if after >= backfill.main_base:
                backfill.lost(self._unreadable_upto(after + 1))
            else:
                backfill.history_damaged(self._needed_from())
                self._keep()
            if self._on_damage is not None:
                self._on_damage()
            raise
        raise Offline(f"this peer is still copying entry {after + 1} of lane {self._core.lane}; read from another peer")

    def _unreadable_upto(self, position: int) -> int:
        """A position at or after this unreadable one, after which an entry can be read. Damage is rarely one entry, so
        the steps grow; what is readable in between is copied too."""
        assert self._main is not None
        step, base = 1, self._core.log.base
        while position < base:
            try:
                self._main(position, 1)
            except StorageDamaged:
                position, step = min(position + step, base), 2 * step
            else:
                break
        return position

    @property
    def whole(self) -> bool:
        """Whether every message that may be read can be read here."""
        backfill = self._backfill
        if backfill.read is None:
            return self._needed_from() > (backfill.main_base if self._main else self._core.log.base)
        return backfill.check_whole(self._needed_from())

    # ------------------------------------------------------------------ copying what is missing

    def replaced(self) -> None:
        """Another peer's snapshot was installed. If it replaced the log too, the older entries are missing here."""
        state = self._core.state
        assert state.snapshot is not None
        if state.reset_at == state.snapshot.position:
            self._backfill.lost(state.reset_at)

    def trim(self) -> None:
        """Drop entries that can no longer be read."""
        self._backfill.trim(self._needed_from())
        self._keep()

    def tick(self, now: float) -> None:
        if self._backfill.busy:
            self._ask(now)

    def wake_at(self) -> float:
        """The time of the next fetch; infinity: nothing is missing."""
        return self._backfill.again_at if self._backfill.busy else inf

    def _ask(self, now: float) -> None:
        core = self._core
        if self.whole or core.state.full:
            return
        fresh_s = core.tuning.heartbeat_fresh_s
        first = core.live_coordinator(now)
        heard = [peer for peer, at in sorted(core.heard.items()) if now - at < fresh_s and peer != first]
        peers = [peer for peer in (first, *heard) if peer not in (0, core.me)]
        question = self._backfill.ask(needed_from=self._needed_from(), peers=peers, now=now, wait_s=fresh_s)
        if question is not None:
            core.effects.send(*question)

    def on_lane_fetch(self, source: int, message: LaneFetch, _now: float) -> None:
        """Another peer copies history: send one frame of committed entries, or an empty answer."""
        try:
            found = one_frame(self.entries(message.after, self._core.tuning.piece_entries))
        except AvowError:
            found = ()
        self._core.effects.send(source, LaneFetched(message.lane, message.after, found))

    def on_lane_fetched(self, _source: int, message: LaneFetched, now: float) -> None:
        if self._core.state.full or not self._backfill.busy:
            return
        if self._backfill.take(message.after, message.entries, self._needed_from()):
            self._keep()
            self._ask(now)

    def _keep(self) -> None:
        """Persist what changed."""
        effects, backfill = self._core.effects, self._backfill
        saves = backfill.take_saves()
        for operation in saves:
            effects.persist(operation)
        if saves:
            effects.after_sync(partial(backfill.synced, backfill.mark))
