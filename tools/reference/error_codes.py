"""The page of all errors: code, HTTP status, whether it is definite, and what to do.

Each message also says what to do when it occurs; this table is for reading in advance. A class without an entry raises
KeyError, so the page cannot be incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from avow import errors
from avow.cli.output import exit_code
from tools.reference.markdown import code, table

_HEAD: Final = """# Errors

All errors that Avow raises or returns, from the tree in `avow.errors`. Over HTTP an error is
`{"error": {"code", "message", "definite", "retriable", ...}}` with the status below. The [client](../client.md) raises
the class; the command line prints one line and ends with the exit code.

*Definite*: the operation did not happen and will not. *Retriable*: the same call may succeed later. After an error that
is not definite the operation may have happened; query a write's outcome, or repeat it, with the same write id. Every
message says what happened, whether it took effect, and what to do; the table is a summary.

"""

WHAT_TO_DO: Final[Mapping[str, str]] = {
    "AvowError": "the base class; never raised itself",
    "Malformed": "the sender has another version or another protocol: see `what`, `expected`, `found`",
    "TooShort": "as for MALFORMED",
    "TooLong": "as for MALFORMED",
    "BadMagic": "as for MALFORMED: these bytes are not a record or a frame",
    "UnknownVersion": "upgrade the older side",
    "BadChecksum": "bytes changed in transit: repeat the call; if it recurs, check proxies and memory",
    "BadOffsets": "as for MALFORMED",
    "CountOverflow": "send fewer messages in a batch",
    "UnknownKind": "upgrade the older side",
    "Refused": "read the message: it names the reason",
    "NotEqual": "another writer was first: read from `expected` on, decide again, write with the new `cursor`",
    "Offline": "no quorum: start peers until more than half of the voters run; the client retries automatically",
    "TooLarge": "make messages smaller (1 MiB) or batches (8 MiB), or raise `request_bytes_max`",
    "InvalidRequest": "correct what the message names; repeating the same call will not help",
    "UnknownQueue": "create the queue, or correct its name",
    "UnknownTransaction": "it was never started here, or was decided long ago: start a new one",
    "UnknownPeer": "`avow peer list` shows the numbers",
    "PeerRemoved": "use another peer; start the removed one anew with an empty folder and --join",
    "UnknownSubscriber": "correct the name; its first reader or `avow subscriber move` creates a subscriber",
    "UnknownMessage": "the version does not exist yet, or belongs to a transaction that is not published",
    "NotCoordinator": "send the request to the peer at `api`; clients do so automatically",
    "NotAuthenticated": "send a token from the peers' tokens file: `--token`, `AVOW_TOKEN`, `token=`",
    "Forbidden": "use another token, or give this one the right in the tokens file and restart the peer",
    "Busy": "retry after `Retry-After`; if it recurs, raise `connections_max`, `in_flight_max`, `channels_max` or "
    "`memory_bytes_max`",
    "AlreadyDecided": "a transaction or pledge of that name is published, discarded or ended: use a new name",
    "Incomplete": "stage the missing messages again, or publish with the counts that exist",
    "UnknownPledge": "it never existed, or was finished more than `pledge_keep_s` ago",
    "UnknownTopic": "create it with `avow pledge subscribe`",
    "ContentDiffers": "a gid or a write id always stands for one content: use a new one",
    "PledgeDecided": "`status` is how it ended; only a dead one can be redriven",
    "MembershipBusy": "another peer is joining or leaving: wait until `avow peer list` shows no such state",
    "UpgradeUnfinished": "start every peer with the new release, then call `avow upgrade finish` again",
    "LaneEnded": "write to another lane of the pub-sub queue; clients do so automatically",
    "Fenced": "another reader took over this subscriber: end this one, or use `member=` to share",
    "Trimmed": "these versions were removed: read from `trimmed_to` + 1, or from the archive",
    "AlreadyExists": "it exists with other settings: use it, change it, or choose another name",
    "TooMany": "a bound in `avow.limits` is reached: finish transactions, remove subscribers or queues",
    "FolderUnusable": "choose another `--data`, or end the process that uses this one",
    "DiskFull": "free space on that peer's disk; it then continues automatically. Reads still work",
    "NotInstalled": "install the named extra: `pip install 'avow[...]'`",
    "ChannelFailed": "`pending` has the unacknowledged messages: send them again, or query each write id",
    "Unknown": "repeat with the same write id, or call `queue.outcome(write_id)`: it takes effect once",
    "StorageDamaged": "nothing: the peer fetches the lane again from the others. Check the disk",
    "Irreparable": "bring the missing file back, or restore from a backup; see [disasters](../operations/disaster.md)",
    "UnfitToVote": "remove this peer, keep its folder, let a new one join; see [disasters](../operations/disaster.md)",
}


def errors_page() -> str:
    rows = [
        (
            "&nbsp;" * 2 * depth + code(error.__name__),
            code(error.code),
            str(error.http_status),
            str(exit_code(error.__new__(error))),
            "yes" if error.definite else "no",
            "yes" if error.retriable else "no",
            WHAT_TO_DO[error.__name__],
        )
        for depth, error in _tree(errors.AvowError)
    ]
    return _HEAD + table(("class", "code", "HTTP", "exit", "definite", "retriable", "what to do"), rows)


def _tree(error: type[errors.AvowError], depth: int = 0) -> Iterator[tuple[int, type[errors.AvowError]]]:
    """Only classes of `avow.errors`: subclasses in other modules have the code of their parent."""
    yield depth, error
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)
