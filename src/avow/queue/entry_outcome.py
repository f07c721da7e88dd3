"""The outcome of an entry, a value that every peer computes identically, and what is answered without an entry.

A client that repeats a write must get the answer of the first attempt, even from another coordinator. So the answer
cannot be kept in a connection or one process: it is computed from the committed log, remembered in the lane's state,
included in its snapshots, and small. An error is stored as its code; the text is made where the answer leaves a peer.

`first_version` and `last_version` mean, when `code` is empty:

    DATA, PUBLISH    the versions that became visible; an empty batch has last = first - 1. Of the step `prepare`:
                     last = its position
    CURSOR           last = the subscriber's cursor
    TRIM             the removed versions; last = first - 1 if a hold or an earlier trim left nothing to remove
    SUBSCRIPTION     of a join: last = the epoch of the subscription
    QUEUE            the lane numbers of a two-phase queue
    LANE_OPEN        the lane's number, twice
    LANE_END         last = the decided end
    anything else    0, 0

and with the codes ALREADY_DECIDED and LANE_ENDED the earlier decision: the published range, or 0, 0 for a discarded
transaction; the lane's end. With CONTENT_DIFFERS the outcome of the other use of the write id: the versions of a write,
or 0, 0 for anything else.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from avow.wire.messages import Kind


class Outcome(Struct, frozen=True, array_like=True, gc=False):
    """`code` is an error's code (see `errors`); empty: done."""

    code: str = ""
    first_version: int = 0
    last_version: int = 0


DONE: Final = Outcome()

_SHOWS: Final = frozenset({Kind.DATA, Kind.TRIM})  # their first version is at least 1, if they are done
_REFUSALS_OF_DATA: Final = frozenset({"COUNT_OVERFLOW"})


def repeated(kind: int, known: Outcome) -> Outcome:
    """The answer to an entry whose write id is known: the first outcome, or CONTENT_DIFFERS.

    A write id names one write for ever. If a batch was staged under it, a write with the same id is stored nowhere, and
    "done" would be false; the same holds the other way round. The window keeps outcomes and no content, so what is
    noticed here is another use of the id. The answer changes nothing in the lane's state.
    """
    if known.code:
        fits = kind != Kind.DATA or known.code in _REFUSALS_OF_DATA
    else:
        fits = kind == Kind.PUBLISH or (known.first_version > 0) == (kind in _SHOWS)
    return known if fits else Outcome("CONTENT_DIFFERS", known.first_version, known.last_version)


class Known(Struct, frozen=True, gc=False):
    """Nothing to append. The answer is `outcome`; None: the outcome of the entry in flight at `position`."""

    outcome: Outcome | None = None
    position: int = 0


class EarlyRefusal(Struct, frozen=True, gc=False):
    """Nothing was appended. For NOT_EQUAL `last_version` is the end the lane will have; else as in `Outcome`."""

    code: str
    first_version: int = 0
    last_version: int = 0
