"""Who votes on a lane, and who only listens.

The membership in force at a peer is the newest MEMBERS entry of its log, committed or not. That is what lets a claim
know which quorum it needs: the log it adopts says so itself. Changing one voter at a time keeps every two memberships
that follow each other overlapping in at least one peer of any two quorums; a change is refused until the previous one
is committed and until the coordinator has committed an entry of its own ballot (without the latter, two coordinators
that never met could each change a different voter).

A learner stores everything and votes on nothing. A new peer is a learner until it has caught up.
"""

from __future__ import annotations

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


_decoder = msgspec.msgpack.Decoder(Members)


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
        raise InvalidRequest(f"peer named twice in voters {wanted.voters} and learners {wanted.learners}")
    if len(voters ^ was) > 1:
        raise InvalidRequest(
            f"one voter at a time: from {sorted(was)} to {sorted(voters)} is {len(voters ^ was)} changes; "
            "nothing was changed. Make them one by one"
        )
    newcomers = voters - was - set(current.learners)
    if newcomers:
        raise InvalidRequest(f"peer {min(newcomers)} must be a learner and catch up before it votes")
