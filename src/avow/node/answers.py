"""A node's answers to requests: done, refused, unknown. The same values for writes and reads.

Done      it happened; for a write the versions it got, for a read the version that the reader has reached
Refusal   definite: it did not and will not happen. `code` is an error's code; `cursor` is the lane's end for NOT_EQUAL,
          the last version of what was published for ALREADY_DECIDED, that of the write which used a write id first
          for CONTENT_DIFFERS, else 0
Lost      indefinite: this peer cannot determine the outcome; the client repeats the request with the same write id
Stored    pub-sub, before the outcome of a write: under which version id to look it up later
Decided   a transaction over several lanes has its one outcome
Reached   pub-sub, for a read: the version that is readable here, for every lane
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from avow.errors import AvowError, Unknown
from avow.wire.error_body import errors_from


class Done(Struct, frozen=True, gc=False):
    first_version: int
    last_version: int


class Refusal(Struct, frozen=True, gc=False):
    code: str
    cursor: int = 0
    reason: str = ""  # text for people; empty: the code's sentence below


class Lost(Struct, frozen=True, gc=False):
    pass


class Stored(Struct, frozen=True, gc=False):
    """Pub-sub only, before the outcome: the version id (lane, version) under which to look up this write later."""

    lane: int
    version: int


class Reached(Struct, frozen=True, gc=False):
    versions: dict[int, int]


class Decided(Struct, frozen=True, gc=False):
    """Of a transaction: by lane number, the first and last version that became visible; 0, 0 for a discard."""

    versions: dict[int, tuple[int, int]]


Answer: TypeAlias = Done | Refusal | Lost | Stored | Reached | Decided
LOST: Final = Lost()

_SENTENCES: Final[dict[str, str]] = {
    "NOT_EQUAL": "the lane does not end at the expected version; nothing was stored. `cursor` is its end: read up to "
    "there and decide again",
    "OFFLINE": "this peer cannot reach a quorum of the lane's voters; nothing was stored. Retry, or use another peer",
    "INVALID_REQUEST": "the command is not valid for this lane; nothing was changed. Correct it before you repeat it",
    "UNKNOWN_QUEUE": "no queue has this name; nothing was changed. Create it, or correct the name",
    "UNKNOWN_TRANSACTION": "the lane has no transaction of this name; nothing was changed. Begin a new one",
    "UNKNOWN_PEER": "no peer has this number; nothing was changed. `avow peer list` shows the numbers",
    "ALREADY_DECIDED": "the transaction was decided before; nothing was changed. `cursor` is the last version it got",
    "INCOMPLETE": "a part does not have as many staged messages as the publish says; nothing was published. Stage the "
    "missing ones again",
    "LANE_ENDED": "the lane has ended without this write and will never contain it. Write it to another lane",
    "FENCED": "another reader took over the subscriber and gets its messages; the cursor was not moved. Stop this "
    "reader, or share the subscriber with `member=`",
    "TOO_MANY": "a limit of this peer or lane is reached; nothing was changed. Retry later",
    "ALREADY_EXISTS": "a queue of this name exists with other settings; nothing was changed. Use it, or choose "
    "another name",
    "FOLDER_UNUSABLE": "the identity belongs to a peer that left, or the number to another peer; nothing was changed. "
    "Join with an empty folder",
    "MEMBERSHIP_BUSY": "an earlier change of members is not finished; nothing was changed. Retry",
    "CONTENT_DIFFERS": "the write id was used before, for a batch that was staged in a transaction; nothing was "
    "stored. Use a new write id for each write",
    "DISK_FULL": "a peer's disk is full; nothing was stored. Free disk space or trim queues, then retry",
}
_ID_OF_A_WRITE: Final = (
    "the write id was used before, for a write that is visible up to version {}; nothing was stored. Use a new write "
    "id for each write"
)
NO_ANSWER: Final = (
    "no answer came in time, or the lane has forgotten the write ids of the time when this write was first sent; it "
    "may or may not have happened. Repeat it with the same write id, and with `created_ms`, when it was first sent"
)


def error_of_answer(answer: Answer) -> AvowError:
    """The error that HTTP returns for this answer."""
    if not isinstance(answer, Refusal):
        return Unknown(NO_ANSWER)
    return errors_from(answer.code, sentence_of(answer), {"definite": True, "cursor": answer.cursor})


def sentence_of(refusal: Refusal) -> str:
    if refusal.code == "CONTENT_DIFFERS" and refusal.cursor and not refusal.reason:
        return _ID_OF_A_WRITE.format(refusal.cursor)
    return refusal.reason or _SENTENCES.get(refusal.code, f"refused with {refusal.code}; nothing was changed")
