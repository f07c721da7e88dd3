"""The peers of a cluster: who each one is, where it is reached, and whether it stays.

A number votes; an identity, the uuid of a data folder, says whose votes those are. The table binds the two for ever: a
number is never given out twice, and a peer that comes back with another identity (an emptied folder) is refused, since
it has forgotten what it promised.

    founder --announce--> ready                          it says who it is at its first start, and its addresses at each
    (asked) --join-----> joining --ready--> ready        a learner until it holds everything, then a voter
                         joining, ready --leave--> leaving --gone--> gone

Who votes is not decided here but by MEMBERS entries, one step at a time; the table says where they should lead.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from avow.limits import IDENTITY_SIZE_BYTES, PEER_NUMBER_MAX, PEERS_EVER_COUNT, PEERS_MAX
from avow.queue.commands import PeerCommand
from avow.queue.outcomes import DONE, Outcome

State: TypeAlias = Literal["joining", "ready", "leaving", "gone"]

_STAYS: Final = frozenset({"joining", "ready"})


class PeerInfo(Struct, frozen=True, array_like=True, gc=False):
    number: int
    identity: bytes
    link: str
    api: str
    state: State


class PeerTable:
    __slots__ = ("by_number",)

    def __init__(self) -> None:
        self.by_number: dict[int, PeerInfo] = {}

    def perform(self, command: PeerCommand, members: tuple[int, ...]) -> Outcome:
        if command.action == "join":
            return self._join(command, members)
        known = self.by_number.get(command.number)
        if command.action == "announce":
            return self._announce(command, known, members)
        if known is None:
            return Outcome("UNKNOWN_PEER")
        return self._move(command, known, members)

    def of_identity(self, identity: bytes) -> PeerInfo | None:
        return next((peer for peer in self.by_number.values() if peer.identity == identity), None)

    def leaving(self) -> tuple[int, ...]:
        """They go on listening to the metadata lane until they are gone: or they would never hear that they leave, and
        hold on to whatever they coordinate."""
        return tuple(sorted(peer.number for peer in self.by_number.values() if peer.state == "leaving"))

    def wanted(self, voters: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Voters and learners a lane should come to have, given the voters of the cluster."""
        leaving = {peer.number for peer in self.by_number.values() if peer.state not in _STAYS}
        ready = {peer.number for peer in self.by_number.values() if peer.state == "ready"}
        joining = {peer.number for peer in self.by_number.values() if peer.state == "joining"}
        stay = ({*voters} | ready) - leaving - joining
        return tuple(sorted(stay)) or voters, tuple(sorted(joining))

    def _announce(self, command: PeerCommand, known: PeerInfo | None, members: tuple[int, ...]) -> Outcome:
        if len(command.identity) != IDENTITY_SIZE_BYTES or (known is None and command.number not in members):
            return Outcome("INVALID_REQUEST")
        if known is not None and known.identity != command.identity:
            return Outcome("FOLDER_UNUSABLE")
        state: State = "ready" if known is None else known.state
        said = PeerInfo(command.number, command.identity, command.link, command.api, state)
        self.by_number[command.number] = said
        return DONE

    def _join(self, command: PeerCommand, members: tuple[int, ...]) -> Outcome:
        if len(command.identity) != IDENTITY_SIZE_BYTES:
            return Outcome("INVALID_REQUEST")
        known = self.of_identity(command.identity)
        if known is not None:  # asked again: the same answer, unless it has left
            return Outcome("", known.number, known.number) if known.state in _STAYS else Outcome("FOLDER_UNUSABLE")
        number = max((*self.by_number, *members), default=0) + 1
        staying = sum(peer.state in _STAYS for peer in self.by_number.values())
        if staying >= PEERS_MAX or len(self.by_number) >= PEERS_EVER_COUNT or number > PEER_NUMBER_MAX:
            return Outcome("TOO_MANY")
        self.by_number[number] = PeerInfo(number, command.identity, command.link, command.api, "joining")
        return Outcome("", number, number)

    def _move(self, command: PeerCommand, known: PeerInfo, members: tuple[int, ...]) -> Outcome:
        before, after = known.state, known.state
        if command.action == "ready" and before == "joining":
            after = "ready"
        elif command.action == "leave" and before in _STAYS:
            others = [peer for peer in self.wanted(members)[0] if peer != known.number]
            if not others:
                return Outcome("INVALID_REQUEST")  # somebody must remain
            after = "leaving"
        elif command.action == "gone" and before == "leaving":
            after = "gone"
        self.by_number[known.number] = replace(known, state=after)
        return DONE
