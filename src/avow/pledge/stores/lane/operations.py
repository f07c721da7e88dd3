"""The messages in a lane of pledges: one store operation per message, split if it is too long.

A lane only orders messages. Each peer decides the result of an operation itself when it applies the message in the
lane's order (`table`), so the message has the condition (a revision, an edition) and not the result.

    Insert      a pledge, if there is none with that gid
    Swap        replaces the progress, if it is still the same pledge at that revision
    SwapTopic   replaces a topic's subscribers, if it is still at that edition
    Forget      removes finished pledges
    Put         a pledge in its present state, rewritten so that its older messages can be trimmed
    PutTopic    a topic likewise

Forget and Put have no condition. Only the lane's coordinator writes them, appended at once or not at all, and never
twice; `table` says why.

`run` and `number` identify the operation: from them a run knows which caller to answer when it applies its own message,
and every peer knows which run changed a pledge last. A message is one byte followed by msgpack. The largest pledge does
not fit into one message, so a long operation is split: pieces that begin with MORE, and the last one with LAST. They
are one write, so they are consecutive.
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
    """`created_ms` distinguishes the pledge from an earlier one with the same gid that was removed."""

    gid: str
    created_ms: int
    revision: int
    progress: Progress
    release: bool = False


class SwapTopic(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """`edition` counts all changes under this name; 0: none yet. No subscribers: it is removed."""

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
    """The messages of the operation, in their order."""
    body = _encode(operation)
    if len(body) <= PIECE_SIZE_BYTES:
        return [LAST + body]
    cuts = range(0, len(body), PIECE_SIZE_BYTES)
    pieces = [MORE + body[cut : cut + PIECE_SIZE_BYTES] for cut in cuts]
    pieces[-1] = LAST + pieces[-1][1:]
    return pieces


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """The body that was split into these pieces, without their first bytes."""
    return b"".join(piece[1:] for piece in pieces)
