"""What a client hears: done, refused, unknown. One value for each, for writes and reads alike.

Done      it happened; for a write the versions it got, for a read the version the reader has reached
Refusal   definite: it did not and will not happen. `code` is an error's code; `cursor` is the lane's end for NOT_EQUAL,
          the last version of what was published for ALREADY_DECIDED, else 0
Lost      indefinite: this peer cannot know any more; repeat with the same write id to find out
Stored    pub-sub, before the outcome of a write: where to ask about it later
Reached   pub-sub, for a read: the version this peer shows of every lane
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Done(Struct, frozen=True, gc=False):
    first_version: int
    last_version: int


class Refusal(Struct, frozen=True, gc=False):
    code: str
    cursor: int = 0
    reason: str = ""  # for people; empty where the code says it all


class Lost(Struct, frozen=True, gc=False):
    pass


class Stored(Struct, frozen=True, gc=False):
    """Pub-sub only, before the outcome: the version id (lane, version) under which to ask about this write later."""

    lane: int
    version: int


class Reached(Struct, frozen=True, gc=False):
    versions: dict[int, int]


Answer: TypeAlias = Done | Refusal | Lost | Stored | Reached
LOST = Lost()
