"""Single peers of the two-phase core without IO, for the tests of this folder."""

from __future__ import annotations

from avow.ids import ballot_of
from avow.replication.durable import synced_receipt
from avow.replication.effects import Effects, LaneImage
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.replication.two_phase.log import Read
from avow.replication.two_phase.roles import SHIPPED, TwoPhaseRoles
from avow.wire.messages import (
    Entry,
    Kind,
    Message,
    ProbeAnswer,
    Promise,
    Snapshot,
)

PROOF = synced_receipt(1)
VOTERS = (1, 2, 3)
B1, B2, B3 = ballot_of(1, 1), ballot_of(2, 2), ballot_of(3, 3)


def core(
    me: int = 1,
    *,
    voters: tuple[int, ...] = VOTERS,
    image: LaneImage | None = None,
    read: Read | None = None,
    tuning: Tuning | None = None,
    roles: TwoPhaseRoles = SHIPPED,
) -> TwoPhaseCore:
    image = image or LaneImage(snapshot=Snapshot(0, 0, voters, (), b""), entries=[])
    tuning = tuning or Tuning()
    return TwoPhaseCore(me=me, lane=1, image=image, rng=lambda: 0.5, tuning=tuning, now=0.0, read=read, roles=roles)


def data(position: int, origin: int) -> Entry:
    return Entry(position, origin, Kind.DATA, 1, b"%016d" % position)


def sync(peer: TwoPhaseCore) -> tuple[Effects | None, list[tuple[int, Message]]]:
    """Perform everything at once; returns the first effects and all messages that left."""
    first, sent = None, []
    while (effects := peer.drain()) is not None:
        first = first or effects
        sent += effects.sends
        if effects.persist:
            peer.persisted(PROOF)
    return first, sent


def sent_by(peer: TwoPhaseCore, kind: type) -> list[Message]:
    return [message for _, message in sync(peer)[1] if isinstance(message, kind)]


def coordinator(*, log: tuple[Entry, ...] = (), read: Read | None = None, tuning: Tuning | None = None) -> TwoPhaseCore:
    """Peer 1 of three, coordinating with its take-over log, all synced."""
    image = LaneImage(stamped=0, snapshot=Snapshot(0, 0, VOTERS, (), b""), entries=list(log))
    peer = core(image=image, read=read, tuning=tuning)
    peer.tick(1.0)
    peer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(peer)
    peer.receive(2, Promise(peer.promised, 0, 0, 0), 1.0)
    assert peer.role == COORDINATOR
    sync(peer)
    return peer


def image_of(entries: list[Entry], *, stamped: int, promised: int, damaged_from: int = 0) -> LaneImage:
    return LaneImage(
        promised=promised,
        stamped=stamped,
        snapshot=Snapshot(0, 0, VOTERS, (), b""),
        entries=entries,
        damaged_from=damaged_from,
    )
