"""What `avow peer remove` says before it asks, and which peers it asks."""

from __future__ import annotations

from typing import Any

from avow.cli.cluster_api import Api
from avow.cli.peer import _others_first, consequences


def peer(number: int, *, state: str = "ready", voter: bool = True, connected: bool = True) -> dict[str, Any]:
    api = f"http://127.0.0.1:{7400 + number}"
    return {"number": number, "state": state, "voter": voter, "connected": connected, "api": api}


def lane(*voters: int, coordinator: int) -> dict[str, Any]:
    return {"voters": list(voters), "coordinator": coordinator}


def test_the_quorum_before_and_after_and_the_lanes_that_move_are_named() -> None:
    lanes = [lane(1, 2, 3, coordinator=1), lane(1, 2, 3, coordinator=2), lane(2, 3, coordinator=3)]
    assert consequences(1, [peer(1), peer(2), peer(3)], lanes) == [
        "voters: 1 2 3 -> 2 3; a write needs 2 of 2 peers (the cluster survives the loss of 0) instead of 2 of 3",
        "peer 1 votes in 2 lanes and coordinates 1 of them, which other peers take over",
    ]


def test_voters_that_are_not_connected_are_named() -> None:
    lines = consequences(1, [peer(1), peer(2), peer(3, connected=False)], [])
    assert lines[1] == "not connected now: 3; the removal ends only when a quorum of the others is connected"


def test_a_peer_that_does_not_vote_changes_no_quorum() -> None:
    lines = consequences(4, [peer(1), peer(4, state="joining", voter=False)], [])
    assert lines == ["peer 4 votes in 0 lanes and coordinates 0 of them, which other peers take over"]


def test_the_peer_that_leaves_is_asked_last() -> None:
    given = Api("http://127.0.0.1:7401,http://127.0.0.1:7402")
    given.address = "http://127.0.0.1:7401"
    known = [peer(1), peer(2), peer(3), peer(4, state="gone")]
    assert _others_first(known, given, 1) == [f"http://127.0.0.1:{port}" for port in (7402, 7403, 7401)]
