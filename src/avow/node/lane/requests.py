"""Write requests to a two-phase lane, and the askers who wait for the answers."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from avow.wire.messages import Section

Asker: TypeAlias = tuple[int, int]  # (0, request) of a local client, (peer, request) if a peer forwarded it
Waiting: TypeAlias = tuple[Asker, bytes]  # and the write id it waits for, which may be one of several in an entry


class Write(Struct, frozen=True, gc=False):
    """A client's write. `expected` -1: append at the lane's end, whatever it is.

    `mergeable`: a validated batch that may be merged into a larger record. `age_ms`: time since the client first sent
    this write id; 0 for a first attempt.
    """

    kind: int
    write_id: bytes
    count: int = 0
    expected: int = -1
    created_ms: int = 0
    control: bytes = b""
    batch: Section = b""
    mergeable: bool = False
    age_ms: int = 0
