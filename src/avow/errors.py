"""Every error Avow raises, in one tree.

    AvowError
    ├── Malformed            bytes that do not follow their layout
    │   ├── TooShort  TooLong  BadMagic  UnknownVersion  BadChecksum  BadOffsets  CountOverflow  UnknownKind
    ├── Refused              definite: it did not happen and will not happen
    │   ├── NotEqual         the lane does not end at the expected version
    │   ├── Offline          no quorum of the voters can be reached
    │   ├── TooLarge  InvalidRequest  UnknownQueue  UnknownTransaction  AlreadyDecided  MembershipBusy
    │   ├── UnknownPeer  UnknownSubscriber  UnknownMessage  LaneEnded  Trimmed  AlreadyExists
    │   ├── UnknownPledge  UnknownTopic
    │   ├── ContentDiffers   the same id was used before for other content
    │   ├── PledgeDecided    an AlreadyDecided that names the pledge's status
    │   ├── Fenced           another reader took over the subscriber
    │   ├── NotCoordinator   only another peer can do this; the answer names it
    │   ├── NotAuthenticated  Forbidden     no token or an unknown one; a token without the right
    │   ├── Busy             a limit of this peer (connections, requests in flight) is reached
    │   ├── TooMany          a limit of the lane's replicated state is reached
    │   ├── NotInstalled     an optional library is not installed
    │   ├── FolderUnusable   the data folder belongs to another peer, is in use, or was emptied
    │   └── DiskFull         this peer accepts no writes until disk space is freed; reads continue
    ├── ChannelFailed        a channel has ended; it returns every message that no acknowledged commit covers
    ├── Unknown              indefinite: it may or may not have happened; repeat it with the same write id
    └── StorageDamaged       a synced byte changed: file, position, expected, found
        ├── UnfitToVote      the damage may include a promise; the peer must not vote under its number again
        └── Irreparable      the peer is alone in its cluster, and nothing can repair what it lost

`definite`: the operation did not and will not happen. `retriable`: trying again may succeed. `needs_new_target`
restricts that: the same call never succeeds, only one that names another lane or another channel. `is_transient`
combines the two and is the only place that decides which errors pass by themselves.
Every message says what happened, whether it took effect, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final


class AvowError(Exception):
    """Base class of every error that Avow raises. Catch it to catch them all."""

    code: ClassVar[str] = "ERROR"
    http_status: ClassVar[int] = 500
    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = False
    needs_new_target: ClassVar[bool] = False

    def details(self) -> dict[str, Any]:
        """Machine-readable fields of this error. Every transport sends them along with the message."""
        return {}


class Malformed(AvowError):
    """Bytes do not follow their layout. Nothing was changed. The sender has another version, or the bytes are
    damaged."""

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
    """The bytes end before their layout does."""

    code = "TOO_SHORT"


class TooLong(Malformed):
    """More bytes than the layout or a limit allows."""

    code = "TOO_LONG"


class BadMagic(Malformed):
    """The first bytes are not those of this format."""

    code = "BAD_MAGIC"


class UnknownVersion(Malformed):
    """The format has a version that this release cannot read. Upgrade the older side."""

    code = "UNKNOWN_VERSION"


class BadChecksum(Malformed):
    """The checksum does not match: the bytes changed on the way. Repeat the call."""

    code = "BAD_CHECKSUM"


class BadOffsets(Malformed):
    """Offsets inside the bytes are out of range or out of order."""

    code = "BAD_OFFSETS"


class CountOverflow(Malformed):
    """A count is above its limit. Send fewer messages in a batch."""

    code = "COUNT_OVERFLOW"


class UnknownKind(Malformed):
    """A message or entry has a kind that this release does not know. Upgrade the older side."""

    code = "UNKNOWN_KIND"


class Refused(AvowError):
    """Definite: the operation did not happen and will not happen. The message says why."""

    code = "REFUSED"
    http_status = 409
    definite = True


class NotEqual(Refused):
    """Another write was appended first. Nothing was stored. Read what is new, decide again, write with the new
    cursor."""

    code = "NOT_EQUAL"

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(
            f"the lane ends at version {current}, not at the expected version {expected}; nothing was stored. "
            f"Read from version {expected + 1}, then write with expected={current}"
        )
        self.expected, self.current = expected, current

    def details(self) -> dict[str, Any]:
        return {"expected": self.expected, "cursor": self.current}


class Offline(Refused):
    """No quorum of the voters can be reached. Nothing was stored. Retry, or start peers until a majority runs."""

    code = "OFFLINE"
    http_status = 503
    retriable = True


class TooLarge(Refused):
    """A message, batch or request is larger than its limit. Nothing was stored. Send less at once."""

    code = "TOO_LARGE"
    http_status = 413


class InvalidRequest(Refused):
    """The request is wrong. Nothing was changed. Correct what the message names; repeating the same call does not
    help."""

    code = "INVALID_REQUEST"
    http_status = 400


class UnknownQueue(Refused):
    """No queue has this name. Nothing was changed. Create the queue or correct the name."""

    code = "UNKNOWN_QUEUE"
    http_status = 404


class UnknownTransaction(Refused):
    """The transaction was never begun here, or was decided long ago. Nothing was changed. Begin a new one."""

    code = "UNKNOWN_TRANSACTION"
    http_status = 404


class UnknownPeer(Refused):
    """No peer has this number. Nothing was changed. `avow peer list` shows the numbers."""

    code = "UNKNOWN_PEER"
    http_status = 404


class PeerRemoved(Refused):
    """The peer was removed from the cluster and serves nothing any more. Nothing was done. Use another peer; `peers`
    has the addresses of those that were in the cluster with it."""

    code = "PEER_REMOVED"
    http_status = 421
    retriable = True

    def __init__(self, message: str, *, peers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.peers = peers

    def details(self) -> dict[str, Any]:
        return {"peers": list(self.peers)}


class UnknownSubscriber(Refused):
    """The queue has no subscriber of this name. Nothing was changed. Its first reader creates it."""

    code = "UNKNOWN_SUBSCRIBER"
    http_status = 404


class UnknownMessage(Refused):
    """The lane has no message with this version yet, or its transaction is not published."""

    code = "UNKNOWN_MESSAGE"
    http_status = 404


class NotCoordinator(Refused):
    """Only the coordinator can do this. Nothing was changed. Send the request to `api`; empty: no coordinator is
    known."""

    code = "NOT_COORDINATOR"
    http_status = 307
    retriable = True

    def __init__(self, message: str, *, coordinator: int = 0, api: str = "") -> None:
        super().__init__(message)
        self.coordinator, self.api = coordinator, api

    def details(self) -> dict[str, Any]:
        return {"coordinator": self.coordinator, "api": self.api}


class NotAuthenticated(Refused):
    """The request has no token, or one that the peer does not know. Nothing was changed. Send a known token."""

    code = "NOT_AUTHENTICATED"
    http_status = 401


class Forbidden(Refused):
    """The token does not have the right for this. Nothing was changed. Use another token or grant the right."""

    code = "FORBIDDEN"
    http_status = 403


class Busy(Refused):
    """A limit of this peer (connections, requests in flight) is reached. Nothing was changed. Retry after a pause."""

    code = "BUSY"
    http_status = 503
    retriable = True


class AlreadyDecided(Refused):
    """The transaction or pledge was decided before. Nothing was changed. Use a new name for a new one."""

    code = "ALREADY_DECIDED"


class Incomplete(Refused):
    """A part of the transaction lacks messages that the publish counts. Nothing was published. Stage them again."""

    code = "INCOMPLETE"


class UnknownPledge(Refused):
    """The pledge was never made, or finished so long ago that it was removed. Nothing was changed."""

    code = "UNKNOWN_PLEDGE"
    http_status = 404


class UnknownTopic(Refused):
    """No topic has this name. Nothing was changed. `avow pledge subscribe` creates it."""

    code = "UNKNOWN_TOPIC"
    http_status = 404


class ContentDiffers(Refused):
    """The gid of a pledge, or a write id, was used before for something else. Nothing was changed. Use a new one."""

    code = "CONTENT_DIFFERS"


class PledgeDecided(AlreadyDecided):
    """The pledge is in a final status. Nothing was changed. `status` is that status, `event` the refused request."""

    def __init__(self, gid: str, *, status: str, event: str) -> None:
        super().__init__(f"pledge {gid} is already {status}, so {event} was refused; nothing was changed")
        self.gid, self.status, self.event = gid, status, event

    def details(self) -> dict[str, Any]:
        return {"gid": self.gid, "status": self.status}


class MembershipBusy(Refused):
    """An earlier change of members is not finished. Nothing was changed. Retry when it is."""

    code = "MEMBERSHIP_BUSY"
    retriable = True


class UpgradeUnfinished(Refused):
    """A member runs an older release, or cannot be asked. Nothing was changed. Upgrade or start that peer."""

    code = "UPGRADE_UNFINISHED"


class LaneEnded(Refused):
    """The lane has ended without this write and will never contain it. Write it to another lane."""

    code = "LANE_ENDED"
    retriable = True
    needs_new_target = True


class Fenced(Refused):
    """Another reader took over the subscriber. The cursor was not moved. Stop this reader, or share with `member=`."""

    code = "FENCED"


class Trimmed(Refused):
    """These versions were removed from the lane. Read from `trimmed_to` + 1, or from the archive."""

    code = "TRIMMED"
    http_status = 410


class AlreadyExists(Refused):
    """The name is in use with other settings. Nothing was changed. Use or change what exists, or choose another
    name."""

    code = "ALREADY_EXISTS"


class TooMany(Refused):
    """A limit in `avow.limits` is reached. Nothing was changed. Free something (trim, finish transactions), then
    retry."""

    code = "TOO_MANY"
    http_status = 429
    retriable = True


class FolderUnusable(Refused):
    """The data folder belongs to another peer, is in use, or was emptied. Nothing was changed. Use another folder."""

    code = "FOLDER_UNUSABLE"


class DiskFull(Refused):
    """A peer's disk is full. Nothing was stored, reads still work. Free space; the peer then continues by itself."""

    code = "DISK_FULL"
    http_status = 507
    retriable = True


class NotInstalled(Refused):
    """An optional library is not installed. Nothing was changed. Install the extra that the message names."""

    code = "NOT_INSTALLED"
    http_status = 501

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(
            f"{what} needs a library that is not installed; nothing was changed. "
            f"Install it: pip install 'avow[{extra}]'"
        )
        self.extra = extra

    def details(self) -> dict[str, Any]:
        return {"extra": self.extra}


class ChannelFailed(AvowError):
    """The channel has ended and cannot be reused. `pending` has its messages that no acknowledged commit covers, in
    order.

    They may or may not have arrived: send them again on a new channel. `reason` says how the channel ended (ABORTED,
    EXPIRED, ...), `name` is the code of the error that caused it, if there is one.
    """

    code = "CHANNEL_FAILED"
    http_status = 409
    retriable = True
    needs_new_target = True

    def __init__(self, message: str, *, reason: str, name: str = "", pending: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.reason, self.name, self.pending = reason, name, pending

    def details(self) -> dict[str, Any]:
        return {"reason": self.reason, "name": self.name, "pending": len(self.pending)}


class Unknown(AvowError):
    """Indefinite: it may or may not have happened. Repeat it with the same write id: it takes effect at most once."""

    code = "UNKNOWN"
    http_status = 504
    retriable = True
    write_id: bytes = b""  # the write to ask about; empty if the client does not know it
    lane: int | None = None  # the lane that the write was bound to


class StorageDamaged(AvowError):
    """A byte on disk changed after it was synced. Nothing was deleted. The peer fetches the lane from other peers."""

    code = "STORAGE_DAMAGED"

    advice: ClassVar[str] = (
        "The peer fetches the lane from other peers and does not vote for entries it cannot read. Check the disk"
    )

    def __init__(self, *, file: str, position: int, expected: object, found: object) -> None:
        super().__init__(
            f"{file} is damaged at byte {position}: expected {expected}, found {found}; nothing was deleted. "
            f"{self.advice}"
        )
        self.file, self.position, self.expected, self.found = file, position, expected, found

    def details(self) -> dict[str, Any]:
        return {"file": self.file, "position": self.position, "expected": str(self.expected), "found": str(self.found)}


class UnfitToVote(StorageDamaged):
    """The damage may include a promise of this peer. The store was not opened and not changed. Replace the peer."""

    code = "UNFIT_TO_VOTE"
    advice = (
        "A promise of this peer may be lost, so it must not vote under its number again. Remove it from the cluster, "
        "keep the folder for inspection, and join a new peer with an empty folder"
    )


class Irreparable(StorageDamaged):
    """A peer that is alone in its cluster lost data, so no other peer can repair it. Nothing was changed."""

    code = "IRREPARABLE"
    advice = (
        "This peer is the only one of its cluster, so nothing can repair what is missing; the folder was not changed. "
        "Bring the file back if it was moved, or restore the folder from a backup"
    )


def _tree(error: type[AvowError]) -> Iterator[type[AvowError]]:
    yield error
    for below in error.__subclasses__():
        yield from _tree(below)


#: The class for each code. A class that shares its parent's code is decoded as the parent.
BY_CODE: Final[dict[str, type[AvowError]]] = {}
for _error in _tree(AvowError):
    BY_CODE.setdefault(_error.code, _error)


def is_transient(code: str) -> bool:
    """Whether the same request, repeated a little later with the same write id, may get another answer.

    False for an unknown code, which comes from a newer peer.
    """
    error = BY_CODE.get(code, AvowError)
    return error.retriable and not error.needs_new_target
