"""What is written into a lane of pledges: one store operation as one message, and how it is cut to fit.

A lane knows nothing of pledges: it orders messages. What an operation did is decided by every peer for itself, when it
applies the message in the lane's order (`lane_table`), so the message carries the condition (a revision, a version) and
never a result.

    Insert      a pledge, if there is none of that gid
    Swap        its progress, if it is still that pledge at that revision
    SwapTopic   a topic's subscribers, if it is still at that edition
    Forget      finished pledges
    Put         a pledge as it is: written again, so that what it was made of can be trimmed
    PutTopic    a topic likewise

Forget and Put carry no condition. They are written by the lane's coordinator alone, appended at once or not at all, and
never twice; `lane_table` says what that is needed for.

`run` and `number` name the operation: whoever applies a message of its own run knows whom to answer, and everybody
knows which run of which peer changed a pledge last. On the wire a message is msgpack behind one byte. A message of a
lane is smaller than the largest pledge, so a long one is cut: pieces that begin with MORE, and the last one with LAST.
They are of one write, so they follow one another without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct, msgpack

from avow.limits import MESSAGE_SIZE_BYTES_MAX
from avow.pledge.record import Content, Progress

MORE: Final = b"\0"
LAST: Final = b"\1"
PIECE_SIZE_BYTES: Final = MESSAGE_SIZE_BYTES_MAX - 1
_PEER_BITS: Final = 16


class Insert(Struct, frozen=True, array_like=True, tag=1, gc=False):
    content: Content
    progress: Progress
    fence: int = 0
    owner: str = ""
    lease_until_ms: int = 0


class Swap(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """`created_ms` tells a pledge from one of the same gid that was forgotten before."""

    gid: str
    created_ms: int
    revision: int
    progress: Progress
    release: bool = False


class SwapTopic(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """`edition` counts all changes under this name; 0: there was none. No subscribers: it is removed."""

    name: str
    edition: int
    subscribers: tuple[tuple[str, str], ...]
    now_ms: int


class Forget(Struct, frozen=True, array_like=True, tag=4, gc=False):
    gids: tuple[str, ...]


class Put(Struct, frozen=True, array_like=True, tag=5, gc=False):
    content: Content
    progress: Progress
    revision: int
    fence: int
    owner: str
    lease_until_ms: int
    run: int  # that changed it last


class PutTopic(Struct, frozen=True, array_like=True, tag=6, gc=False):
    name: str
    subscribers: tuple[tuple[str, str], ...]
    version: int
    created_ms: int
    updated_ms: int
    edition: int


def run_of(*, peer: int, incarnation: int) -> int:
    return incarnation << _PEER_BITS | peer


def peer_of(run: int) -> tuple[int, int]:
    """(peer, incarnation)"""
    return run & (1 << _PEER_BITS) - 1, run >> _PEER_BITS


Change: TypeAlias = Insert | Swap | SwapTopic | Forget | Put | PutTopic


class Operation(Struct, frozen=True, array_like=True, gc=False):
    run: int
    number: int
    change: Change


_encode: Final = msgpack.Encoder().encode
decode: Final = msgpack.Decoder(Operation).decode


def pieces_of(operation: Operation) -> list[bytes]:
    """The messages that carry it, in their order."""
    body = _encode(operation)
    if len(body) <= PIECE_SIZE_BYTES:
        return [LAST + body]
    cuts = range(0, len(body), PIECE_SIZE_BYTES)
    pieces = [MORE + body[cut : cut + PIECE_SIZE_BYTES] for cut in cuts]
    pieces[-1] = LAST + pieces[-1][1:]
    return pieces


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """The body that these were cut from; their first bytes are dropped."""
    return b"".join(piece[1:] for piece in pieces)
