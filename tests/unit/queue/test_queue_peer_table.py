"""The peer table of a cluster: numbers and identities, joining and leaving."""

from __future__ import annotations

from avow.limits import PEERS_MAX
from avow.queue.commands import PeerCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.metadata_state import PeerTable

FOUNDERS = (1, 2, 3)


def identity(letter: str) -> bytes:
    return letter.encode() * 16


def announce(table: PeerTable, number: int, letter: str, *, link: str = "", api: str = "") -> Outcome:
    return table.perform(PeerCommand("announce", number, identity(letter), link, api), FOUNDERS)


def join(table: PeerTable, letter: str, members: tuple[int, ...] = FOUNDERS) -> Outcome:
    return table.perform(PeerCommand("join", 0, identity(letter)), members)


def move(table: PeerTable, action: str, number: int, members: tuple[int, ...] = FOUNDERS) -> Outcome:
    return table.perform(PeerCommand(action, number), members)  # type: ignore[arg-type]


def founded() -> PeerTable:
    table = PeerTable()
    for number, letter in zip(FOUNDERS, "abc", strict=True):
        assert announce(table, number, letter) == Outcome()
    return table


def states(table: PeerTable) -> dict[int, str]:
    return {peer.number: peer.state for peer in table.by_number.values()}


def test_founders_are_ready_as_soon_as_they_announce_their_identity() -> None:
    assert states(founded()) == {1: "ready", 2: "ready", 3: "ready"}


def test_a_peer_announces_its_addresses_at_each_start() -> None:
    table = founded()
    announce(table, 2, "b", link="host:1", api="http://host:2")
    assert (table.by_number[2].link, table.by_number[2].api) == ("host:1", "http://host:2")


def test_a_number_with_another_identity_is_an_emptied_folder_and_refused() -> None:
    table = founded()
    assert announce(table, 2, "x") == Outcome("FOLDER_UNUSABLE")
    assert table.by_number[2].identity == identity("b")


def test_a_peer_that_is_not_a_member_or_has_no_identity_cannot_announce_itself() -> None:
    table = founded()
    assert announce(table, 9, "x") == Outcome("INVALID_REQUEST")
    assert table.perform(PeerCommand("announce", 1, b"short"), FOUNDERS) == Outcome("INVALID_REQUEST")


def test_a_join_gets_the_next_number_and_a_repeated_join_the_same_one() -> None:
    table = founded()
    assert [join(table, "d"), join(table, "d"), join(table, "e")] == [
        Outcome("", 4, 4),
        Outcome("", 4, 4),
        Outcome("", 5, 5),
    ]
    assert states(table)[4] == "joining"


def test_a_number_is_not_reused_after_its_peer_has_left() -> None:
    table = founded()
    join(table, "d")
    move(table, "leave", 4)
    move(table, "gone", 4)
    assert states(table)[4] == "gone"
    assert join(table, "e") == Outcome("", 5, 5)
    assert join(table, "d") == Outcome("FOLDER_UNUSABLE"), "its folder belongs to a peer that left"


def test_invalid_membership_steps_change_nothing() -> None:
    table = founded()
    join(table, "d")
    assert move(table, "gone", 4) == Outcome()
    assert move(table, "ready", 1) == Outcome()
    assert states(table) == {1: "ready", 2: "ready", 3: "ready", 4: "joining"}
    assert move(table, "ready", 9) == Outcome("UNKNOWN_PEER")


def test_the_target_members_are_the_peers_that_stay() -> None:
    table = founded()
    join(table, "d")
    assert table.wanted(FOUNDERS) == (FOUNDERS, (4,))
    move(table, "ready", 4)
    move(table, "leave", 1)
    assert table.wanted(FOUNDERS) == ((2, 3, 4), ())


def test_a_founder_that_has_not_announced_itself_yet_stays_a_voter() -> None:
    table = PeerTable()
    announce(table, 1, "a")
    assert table.wanted(FOUNDERS) == (FOUNDERS, ())


def test_the_last_peer_cannot_leave() -> None:
    table = founded()
    assert [move(table, "leave", number) for number in FOUNDERS] == [Outcome(), Outcome(), Outcome("INVALID_REQUEST")]
    assert states(table)[3] == "ready"


def test_the_number_of_members_is_bounded() -> None:
    table = PeerTable()
    codes = [table.perform(PeerCommand("join", 0, b"%016d" % number), ()).code for number in range(PEERS_MAX + 1)]
    assert codes == [""] * PEERS_MAX + ["TOO_MANY"]
