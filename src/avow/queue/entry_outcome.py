"""The outcome of an entry, a value that every peer computes identically, and what is answered without an entry.

A client that repeats a write must get the answer of the first attempt, even from another coordinator. So the answer
cannot be kept in a connection or one process: it is computed from the committed log, remembered in the lane's state,
included in its snapshots, and small. An error is stored as its code; the text is made where the answer leaves a peer.

`first_version` and `last_version` mean, when `code` is empty:

    DATA, PUBLISH    the versions that became visible; an empty batch has last = first - 1
    CURSOR           last = the subscriber's cursor
    TRIM             the removed versions; last = first - 1 if a hold or an earlier trim left nothing to remove
    SUBSCRIPTION     of a join: last = the epoch of the subscription
    QUEUE            the lane numbers of a two-phase queue
    LANE_OPEN        the lane's number, twice
    LANE_END         last = the decided end
    anything else    0, 0

and with the codes ALREADY_DECIDED and LANE_ENDED the earlier decision: the published range, or 0, 0 for a discarded
transaction; the lane's end.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Outcome(Struct, frozen=True, array_like=True, gc=False):
    """`code` is an error's code (see `errors`); empty: done."""

    code: str = ""
    first_version: int = 0
    last_version: int = 0


DONE: Final = Outcome()


class Known(Struct, frozen=True, gc=False):
    """Nothing to append. The answer is `outcome`; None: the outcome of the entry in flight at `position`."""

    outcome: Outcome | None = None
    position: int = 0


class EarlyRefusal(Struct, frozen=True, gc=False):
    """Nothing was appended. For NOT_EQUAL `last_version` is the end the lane will have; else as in `Outcome`."""

    code: str
    first_version: int = 0
    last_version: int = 0
