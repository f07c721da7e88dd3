"""The membership of a lane: voters and learners.

The membership in force at a peer is the newest MEMBERS entry of its log, committed or not. So the log that a claim
adopts says which quorum the claim needs. Changing one voter at a time keeps quorums of consecutive memberships
overlapping in at least one peer. A change is refused until the previous one is committed and the coordinator has
committed an entry of its own ballot; without the latter, two coordinators that do not know of each other could each
change a different voter.

A learner stores everything and does not vote. A new peer is a learner until it has caught up.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest, Malformed
from avow.limits import PEERS_MAX


class Members(Struct, frozen=True, gc=False, array_like=True):
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @property
    def everyone(self) -> tuple[int, ...]:
        return self.voters + self.learners


_decoder: Final = msgspec.msgpack.Decoder(Members)


def encode_members(members: Members) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_members(control: bytes) -> Members:
    try:
        return _decoder.decode(control)
    except msgspec.DecodeError as error:
        raise Malformed("membership command", expected="[voters, learners]", found=error) from error


def check_change(current: Members, wanted: Members) -> None:
    """Raise InvalidRequest unless `wanted` follows `current` by a single step."""
    voters, was = set(wanted.voters), set(current.voters)
    if not wanted.voters:
        raise InvalidRequest("a lane needs at least one voter; nothing was changed")
    if len(wanted.everyone) > PEERS_MAX:
        raise InvalidRequest(f"a lane has at most {PEERS_MAX} peers, not {len(wanted.everyone)}; nothing was changed")
    if len(set(wanted.everyone)) != len(wanted.everyone):
        raise InvalidRequest(
            f"a peer is named twice in voters {wanted.voters} and learners {wanted.learners}; nothing was changed"
        )
    if len(voters ^ was) > 1:
        raise InvalidRequest(
            f"from voters {sorted(was)} to {sorted(voters)} are {len(voters ^ was)} changes, and only one at a time is "
            "allowed; nothing was changed. Make them one by one"
        )
    newcomers = voters - was - set(current.learners)
    if newcomers:
        raise InvalidRequest(
            f"peer {min(newcomers)} is not a learner of the lane yet; nothing was changed. Add it as a learner first"
        )
