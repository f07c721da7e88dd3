"""What came of an entry, as a value every peer computes alike.

A client that repeats a write must hear what it would have heard the first time, from whichever peer coordinates by
then. So the answer cannot live in a connection or in one process: it is computed from the committed log, remembered
in the lane's state, carried by its snapshots, and small. An error is carried by its code; the words for people are
made where the answer leaves a peer.

`first_version` and `last_version` mean, when `code` is empty:

    DATA, PUBLISH    the versions that became visible; an empty batch has last = first - 1
    CURSOR           last = where the subscriber's cursor is now
    TRIM             the versions removed; last = first - 1 if a hold or an earlier trim left nothing to remove
    SUBSCRIPTION     of a join: last = the epoch of the subscription it is part of
    QUEUE            the lane numbers given to a two-phase queue
    LANE_OPEN        the lane's number, twice
    LANE_END         last = the decided end
    anything else    0, 0

and with the codes ALREADY_DECIDED and LANE_ENDED what had been decided before: the published range, or 0, 0 for a
discarded transaction; the lane's end.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Outcome(Struct, frozen=True, array_like=True, gc=False):
    """`code` is an error's code (see `errors`), or empty: done."""

    code: str = ""
    first_version: int = 0
    last_version: int = 0


DONE: Final = Outcome()
