"""Two layers that do not know each other read the same membership bytes: here they are held to one form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from avow.queue import commands
from avow.replication.membership import Members, decode_members, encode_members
from avow.wire.messages import Kind

peers = st.lists(st.integers(0, 65_535), min_size=1, max_size=20, unique=True).map(tuple)


@given(voters=peers, learners=peers)
def test_the_queue_and_the_replication_core_read_each_others_membership(
    voters: tuple[int, ...], learners: tuple[int, ...]
) -> None:
    control = encode_members(Members(voters, learners))
    assert control == commands.encode(commands.MembersCommand(voters, learners))
    assert commands.decode(Kind.MEMBERS, control) == commands.MembersCommand(voters, learners)
    assert decode_members(control) == Members(voters, learners)
