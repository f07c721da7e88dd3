"""Every error Avow raises, in one tree.

    AvowError
    ├── Malformed            bytes that are not what they claim to be
    │   ├── TooShort  TooLong  BadMagic  UnknownVersion  BadChecksum  BadOffsets  CountOverflow  UnknownKind
    ├── Refused              definite: it did not happen and will not happen
    │   ├── NotEqual         the expected cursor is not the end of the lane
    │   ├── Offline          no quorum of fresh heartbeats
    │   ├── TooLarge  InvalidRequest  UnknownQueue  UnknownTransaction  AlreadyDecided  MembershipBusy
    │   ├── UnknownPeer  UnknownSubscriber  UnknownMessage  LaneEnded  Trimmed  AlreadyExists
    │   ├── UnknownPledge  UnknownTopic
    │   ├── ContentDiffers   the same id was used for something else before
    │   ├── PledgeDecided    an AlreadyDecided that names the pledge's status
    │   ├── Fenced           another reader took over from this one
    │   ├── NotCoordinator   another peer must be asked, and the answer names it
    │   ├── NotAuthenticated  Forbidden     no token or an unknown one; a token without the right
    │   ├── Busy             a limit of this peer (connections, requests in flight) is reached
    │   ├── TooMany          a bound of the lane's replicated state is reached
    │   ├── NotInstalled     an optional library is missing here
    │   ├── FolderUnusable   the data folder is another peer's, in use, or was emptied
    │   └── DiskFull         this peer takes no writes until space is freed; reads go on
    ├── ChannelFailed        a channel is over for good; it hands back every message that no acknowledged commit covers
    ├── Unknown              indefinite: it may or may not have happened; ask again with the same write id
    └── StorageDamaged       a sealed byte changed: file, position, expected, found
        └── UnfitToVote      the damage reached what a peer has promised; it may not vote as itself again

`definite` says the operation did not and will not happen. `retriable` says the same call may succeed later.
Every message names what happened, whether it took effect, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class AvowError(Exception):
    code: ClassVar[str] = "ERROR"
    http_status: ClassVar[int] = 500
    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = False

    def details(self) -> dict[str, Any]:
        """Machine-readable facts beside the message; every answer to a caller carries them."""
        return {}


class Malformed(AvowError):
    """Bytes that do not follow their layout. Nothing was changed."""

    code = "MALFORMED"
    http_status = 400
    definite = True

    def __init__(self, what: str, *, expected: object, found: object, at: int | None = None) -> None:
        where = "" if at is None else f" at byte {at}"
        super().__init__(f"{what}{where}: expected {expected}, found {found}; nothing was changed")
        self.what, self.expected, self.found, self.at = what, expected, found, at

    def details(self) -> dict[str, Any]:
        return {"what": self.what, "expected": str(self.expected), "found": str(self.found), "at": self.at}


class TooShort(Malformed):
    code = "TOO_SHORT"


class TooLong(Malformed):
    code = "TOO_LONG"


class BadMagic(Malformed):
    code = "BAD_MAGIC"


class UnknownVersion(Malformed):
    code = "UNKNOWN_VERSION"


class BadChecksum(Malformed):
    code = "BAD_CHECKSUM"


class BadOffsets(Malformed):
    code = "BAD_OFFSETS"


class CountOverflow(Malformed):
    code = "COUNT_OVERFLOW"


class UnknownKind(Malformed):
    code = "UNKNOWN_KIND"


class Refused(AvowError):
    """Definite: the operation did not happen and will not happen."""

    code = "REFUSED"
    http_status = 409
    definite = True


class NotEqual(Refused):
    code = "NOT_EQUAL"

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(
            f"the lane ends at version {current}, not at the expected {expected}; nothing was stored. "
            f"Read from {expected + 1} and decide again"
        )
        self.expected, self.current = expected, current

    def details(self) -> dict[str, Any]:
        return {"expected": self.expected, "cursor": self.current}


class Offline(Refused):
    code = "OFFLINE"
    http_status = 503
    retriable = True


class TooLarge(Refused):
    code = "TOO_LARGE"
    http_status = 413


class InvalidRequest(Refused):
    code = "INVALID_REQUEST"
    http_status = 400


class UnknownQueue(Refused):
    code = "UNKNOWN_QUEUE"
    http_status = 404


class UnknownTransaction(Refused):
    code = "UNKNOWN_TRANSACTION"
    http_status = 404


class UnknownPeer(Refused):
    code = "UNKNOWN_PEER"
    http_status = 404


class UnknownSubscriber(Refused):
    code = "UNKNOWN_SUBSCRIBER"
    http_status = 404


class UnknownMessage(Refused):
    code = "UNKNOWN_MESSAGE"
    http_status = 404


class NotCoordinator(Refused):
    """Only the coordinator can do this. `api` is where it is reached, empty when nobody is known to coordinate."""

    code = "NOT_COORDINATOR"
    http_status = 307
    retriable = True

    def __init__(self, message: str, *, coordinator: int = 0, api: str = "") -> None:
        super().__init__(message)
        self.coordinator, self.api = coordinator, api

    def details(self) -> dict[str, Any]:
        return {"coordinator": self.coordinator, "api": self.api}


class NotAuthenticated(Refused):
    code = "NOT_AUTHENTICATED"
    http_status = 401


class Forbidden(Refused):
    code = "FORBIDDEN"
    http_status = 403


class Busy(Refused):
    code = "BUSY"
    http_status = 503
    retriable = True


class AlreadyDecided(Refused):
    code = "ALREADY_DECIDED"


class Incomplete(Refused):
    """A part of a transaction does not have the messages that a publish says it has."""

    code = "INCOMPLETE"


class UnknownPledge(Refused):
    code = "UNKNOWN_PLEDGE"
    http_status = 404


class UnknownTopic(Refused):
    code = "UNKNOWN_TOPIC"
    http_status = 404


class ContentDiffers(Refused):
    """A pledge of that gid exists, and it is another one. Nothing was changed."""

    code = "CONTENT_DIFFERS"


class PledgeDecided(AlreadyDecided):
    """`status` is the pledge's, `event` what was asked of it."""

    def __init__(self, gid: str, *, status: str, event: str) -> None:
        super().__init__(f"pledge {gid} is {status}: {event} is not possible any more; nothing was changed")
        self.gid, self.status, self.event = gid, status, event

    def details(self) -> dict[str, Any]:
        return {"gid": self.gid, "status": self.status}


class MembershipBusy(Refused):
    code = "MEMBERSHIP_BUSY"
    retriable = True


class LaneEnded(Refused):
    code = "LANE_ENDED"
    retriable = True


class Fenced(Refused):
    """A subscriber's lanes belong to another reader now: this one moves their cursors no more."""

    code = "FENCED"


class Trimmed(Refused):
    code = "TRIMMED"
    http_status = 410


class AlreadyExists(Refused):
    code = "ALREADY_EXISTS"


class TooMany(Refused):
    code = "TOO_MANY"
    http_status = 429
    retriable = True


class FolderUnusable(Refused):
    code = "FOLDER_UNUSABLE"


class DiskFull(Refused):
    code = "DISK_FULL"
    http_status = 507
    retriable = True


class NotInstalled(Refused):
    code = "NOT_INSTALLED"
    http_status = 501

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(
            f"{what} needs a library that is not installed here; nothing was changed. "
            f"Install it: pip install 'avow[{extra}]'"
        )
        self.extra = extra

    def details(self) -> dict[str, Any]:
        return {"extra": self.extra}


class ChannelFailed(AvowError):
    """A channel is over for good. `pending` are its messages that no acknowledged commit covers, in order.

    `reason` is the code of the end (ABORTED, EXPIRED, ...), `name` the code of the error behind it, if there is one.
    """

    code = "CHANNEL_FAILED"
    http_status = 409
    retriable = True

    def __init__(self, message: str, *, reason: str, name: str = "", pending: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.reason, self.name, self.pending = reason, name, pending

    def details(self) -> dict[str, Any]:
        return {"reason": self.reason, "name": self.name, "pending": len(self.pending)}


class Unknown(AvowError):
    """Indefinite: it may or may not have happened. Repeat it with the same write id to find out."""

    code = "UNKNOWN"
    http_status = 504
    retriable = True
    write_id: bytes = b""  # where the client knows them: the write to ask about,
    lane: int | None = None  # and the lane it was bound to


class StorageDamaged(AvowError):
    """A byte that was synced has changed. Nothing is deleted because of it."""

    code = "STORAGE_DAMAGED"

    advice: ClassVar[str] = "The peer repairs the lane from the others and does not vote for what it cannot read"

    def __init__(self, *, file: str, position: int, expected: object, found: object) -> None:
        super().__init__(
            f"{file} is damaged at byte {position}: expected {expected}, found {found}; nothing was deleted. "
            f"{self.advice}"
        )
        self.file, self.position, self.expected, self.found = file, position, expected, found

    def details(self) -> dict[str, Any]:
        return {"file": self.file, "position": self.position, "expected": str(self.expected), "found": str(self.found)}


class UnfitToVote(StorageDamaged):
    """What a peer has promised may be lost with it. Opening its store fails every time, and changes nothing."""

    code = "UNFIT_TO_VOTE"
    advice = (
        "A promise of this peer may be lost, so it must not vote as itself again: remove it from the cluster, keep the "
        "folder for inspection, and let it join anew with an empty one"
    )
