"""The state machine that a lane's committed entries drive. Only this differs between queues and the metadata lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from avow.node.answers import Refusal
from avow.node.lane.requests import Write
from avow.queue.entry_outcome import EarlyRefusal, Known, Outcome
from avow.queue.ledger import Writes
from avow.replication.membership import Members
from avow.wire.messages import Entry


class Machine(Protocol):
    """The state built from entries, and the unreplicated state that a coordinator needs besides."""

    applied: int  # the position up to which entries were applied

    @property
    def visible_end(self) -> int:
        """The end that a read reports."""

    def handlers(self) -> dict[type, Callable[..., None]]:
        """Additional message types and their handlers: (source, message, now)."""

    def tick(self, now: float) -> None: ...

    def wake_at(self) -> float:
        """When `tick` has something to do, if no entry is applied until then."""

    # the state

    def apply(self, entry: Entry) -> Outcome: ...

    def snapshot(self) -> bytes: ...

    def snapshot_taken(self) -> None:
        """The core has a snapshot at `applied`: entries it covers may be deleted unless they are still readable."""

    def restore(self, snapshot: bytes, position: int) -> None:
        """Replace the state by another peer's at `position`, because committed entries were never applied here."""

    def position_of(self, snapshot: bytes) -> int:
        """The position of the state that `restore` would give. Raises Malformed; changes nothing."""

    def outcome_of(self, write_id: bytes) -> Outcome | None:
        """The outcome of one write in a merged entry."""

    # while this peer coordinates

    def lead(self, uncommitted: tuple[Entry, ...] | None) -> None:
        """This peer begins to coordinate, with these entries in flight; None: it stops."""

    def track(self, entry: Entry, writes: Writes = ()) -> None:
        """The coordinator appended an entry; `writes` if it was merged from several."""

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        """The answer to a write without appending it; None: append it, the answer is its outcome."""

    def would_know(self, write: Write, now: float) -> bool:
        """Whether this write id would still be remembered here if the write had been stored when it was first sent."""

    def refuse_members(self, current: Members, wanted: Members) -> Refusal | None:
        """A refusal if the state forbids this change of members; checked before anything is appended."""
