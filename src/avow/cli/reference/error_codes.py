"""Every error with its code, its status, whether it is definite, and what to do about it.

What to do is said by each message at the moment it happens; the table here is for who reads before it does. A class
without a line is an error of this page: it does not get made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from avow import errors
from avow.cli.reference.markdown import code, table
from avow.cli.show import exit_code

_HEAD: Final = """# Errors

Every error that Avow raises or answers, from the one tree in `avow.errors`. An error over HTTP is
`{"error": {"code", "message", "definite", "retriable", ...}}` with the status below; the [client](../client.md)
raises the class; the command line prints one line and ends with the exit code.

*Definite*: it did not happen and will not. *Retriable*: the same call may succeed later. What is neither definite nor
refused may have happened; a write is then asked about, or repeated, with the same write id. Every message says what
happened, whether it took effect, and what to do; this is the short form.

"""

WHAT_TO_DO: Final[Mapping[str, str]] = {
    "AvowError": "the root of the tree; nothing is raised as just this",
    "Malformed": "the sender is of another version, or not what it says it is: look at `what`, `expected`, `found`",
    "TooShort": "as above",
    "TooLong": "as above",
    "BadMagic": "as above: these bytes were never a record or a frame",
    "UnknownVersion": "upgrade the side that is older",
    "BadChecksum": "bytes changed on the way: repeat the call; if it comes again, look for a broken proxy or memory",
    "BadOffsets": "as for MALFORMED",
    "CountOverflow": "send fewer messages in a batch",
    "UnknownKind": "upgrade the side that is older",
    "Refused": "read the message: it names what was in the way",
    "NotEqual": "somebody wrote first: read from `expected` on, decide again, write with the new `cursor`",
    "Offline": "no quorum is heard: start peers until more than half of the voters run; the client repeats by itself",
    "TooLarge": "make messages smaller (1 MiB) or batches (8 MiB), or raise `request_bytes_max`",
    "InvalidRequest": "correct what the message names; repeating the same call will not help",
    "UnknownQueue": "create the queue, or correct its name",
    "UnknownTransaction": "it was never begun here, or was decided long ago; begin a new one",
    "UnknownPeer": "`avow peer list` has the numbers",
    "UnknownSubscriber": "it is made by its first reader or `avow subscriber move`; correct the name",
    "UnknownMessage": "no such version yet, or a transaction's that is not published",
    "NotCoordinator": "ask the peer at `api`; clients do so by themselves",
    "NotAuthenticated": "send a token that the tokens file knows: `--token`, `AVOW_TOKEN`, `token=`",
    "Forbidden": "use another token, or give this one the right in the tokens file and restart the peer",
    "Busy": "come again after `Retry-After`; raise `connections_max`, `in_flight_max` or `channels_max` if it stays",
    "AlreadyDecided": "a transaction or pledge of that name is published, discarded or ended: use a new name",
    "Incomplete": "stage the missing messages again, or publish with the counts that are there",
    "UnknownPledge": "it was never made, or was finished more than `pledge_keep_s` ago",
    "UnknownTopic": "`avow pledge subscribe` makes it",
    "ContentDiffers": "a gid stands for one content for ever: use a new gid",
    "PledgeDecided": "`status` is how it ended; a dead one is redriven, others stay as they are",
    "MembershipBusy": "another peer is joining or leaving: wait until `avow peer list` shows no such state",
    "LaneEnded": "write to another lane of the pub-sub queue; clients do so by themselves",
    "Fenced": "another reader has this subscriber's name: end this one, or use `member=` to share",
    "Trimmed": "these versions were removed: read from `trimmed_to` + 1, or from the archive",
    "AlreadyExists": "there is one of that name with other settings: use it, change it, or choose another name",
    "TooMany": "a bound in `avow.limits` is reached: finish transactions, remove subscribers or queues",
    "FolderUnusable": "choose another `--data`, or end the process that uses this one",
    "DiskFull": "free space where that peer's data is; it goes on by itself. Reads work meanwhile",
    "NotInstalled": "install the extra that is named: `pip install 'avow[...]'`",
    "ChannelFailed": "`pending` has what was not acknowledged: send it again, or ask with each write id",
    "Unknown": "repeat with the same write id, or ask `queue.outcome(write_id)`: it takes effect once",
    "StorageDamaged": "nothing: the peer fetches the lane again from the others. Look at the disk",
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
    """Only those of `avow.errors`: what single parts derive for themselves keeps the code of its parent."""
    yield depth, error
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)
