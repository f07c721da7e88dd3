"""The table of a lane of pledges: the effect of operations, and that a trim changes nothing."""

from random import Random

import pytest

from avow.limits import MESSAGE_SIZE_BYTES_MAX
from avow.pledge.record import NEVER_MS, Branch, Content, Progress, Status
from avow.pledge.store import Topic
from avow.pledge.stores.lane.operations import (
    Change,
    Forget,
    Insert,
    Operation,
    Swap,
    SwapTopic,
    peer_of,
    pieces_of,
    run_of,
)
from avow.pledge.stores.lane.table import LaneTable, Outcome, put_of, put_topic_of

RUN = run_of(peer=2, incarnation=7)


class Lane:
    """Messages in order, and the table that was there from the first one on."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.table = LaneTable()

    def write(self, change: Change, *, run: int = RUN) -> Outcome:
        pieces = pieces_of(Operation(run, len(self.messages), change))
        outcomes = []
        for piece in pieces:
            self.messages.append(piece)
            outcomes.append(self.table.apply(len(self.messages), piece))
        assert outcomes[:-1] == [None] * (len(pieces) - 1)
        assert outcomes[-1] is not None
        return outcomes[-1]

    def rebuilt(self, *, trimmed_to: int) -> LaneTable:
        table = LaneTable(applied=trimmed_to)
        for version in range(trimmed_to + 1, len(self.messages) + 1):
            table.apply(version, self.messages[version - 1])
        return table


def progress(
    status: Status = "prepared", *, created_ms: int = 1, next_at_ms: int = 100, finished_ms: int = 0
) -> Progress:
    return Progress(status, created_ms, created_ms, next_at_ms, finished_ms=finished_ms)


def insert(gid: str, *, payload: bytes = b"x", created_ms: int = 1) -> Insert:
    content = Content(gid, (Branch("01", "http://a/b", payload),), "http://a/check")
    return Insert(content, progress(created_ms=created_ms))


def swap(gid: str, revision: int, status: Status = "submitted", *, created_ms: int = 1, release: bool = False) -> Swap:
    over = status in ("succeeded", "failed")
    next_at_ms = NEVER_MS if over else 100
    return Swap(
        gid,
        created_ms,
        revision,
        progress(status, created_ms=created_ms, next_at_ms=next_at_ms, finished_ms=5 if over else 0),
        release,
    )


def test_an_insert_takes_effect_once_and_returns_what_is_stored() -> None:
    lane = Lane()
    first = lane.write(insert("a"))
    again = lane.write(insert("a", payload=b"other"))
    assert first.done
    assert not again.done
    assert again.pledge == first.pledge
    assert first.pledge is not None
    assert first.pledge.content.branches[0].payload == b"x"


def test_a_swap_takes_effect_at_its_revision_only() -> None:
    lane = Lane()
    lane.write(insert("a"))
    assert lane.write(swap("a", 1)).done
    late = lane.write(swap("a", 1, "failed"))
    assert not late.done
    assert late.pledge is not None
    assert (late.pledge.revision, late.pledge.status) == (2, "submitted")
    assert not lane.write(swap("b", 1)).done


def test_a_swap_of_a_forgotten_pledge_does_not_change_a_new_one_under_its_gid() -> None:
    lane = Lane()
    lane.write(insert("a", created_ms=1))
    lane.write(swap("a", 1, "failed"))
    lane.write(Forget(("a",)))
    lane.write(insert("a", created_ms=9))
    assert not lane.write(swap("a", 1, created_ms=1)).done
    assert lane.write(swap("a", 1, created_ms=9)).done


def test_a_swap_carries_the_end_of_a_lease() -> None:
    lane = Lane()
    lane.write(Insert(Content("a"), progress(), 0, "me", 500))
    kept = lane.write(swap("a", 1)).pledge
    assert kept is not None
    assert (kept.owner, kept.lease_until_ms) == ("me", 500)
    released = lane.write(swap("a", 2, release=True)).pledge
    assert released is not None
    assert (released.owner, released.lease_until_ms) == ("", 0)


def test_a_long_operation_is_cut_and_joined_again() -> None:
    lane = Lane()
    payload = bytes(range(256)) * (10 * MESSAGE_SIZE_BYTES_MAX // 1024)
    outcome = lane.write(insert("long", payload=payload))
    assert outcome.pledge is not None
    assert outcome.pledge.content.branches[0].payload == payload
    assert len(lane.messages) == 3
    assert all(len(message) <= MESSAGE_SIZE_BYTES_MAX for message in lane.messages)
    assert lane.table.pledges["long"].base == 1
    assert lane.table.trim_limit() == 0


def test_a_trim_in_the_middle_of_an_obsolete_long_operation_is_harmless() -> None:
    lane = Lane()
    lane.write(insert("long", payload=b"x" * (2 * MESSAGE_SIZE_BYTES_MAX)))
    lane.write(put_of(lane.table.pledges["long"]))
    for trimmed_to in (1, 2, 3):
        table = lane.rebuilt(trimmed_to=trimmed_to)
        assert table.pledges == lane.table.pledges
    assert lane.rebuilt(trimmed_to=1).malformed == 1


def test_an_invalid_operation_changes_nothing() -> None:
    table = LaneTable()
    for version, message in enumerate((b"", b"\1", b"\1\xff", b"\1\x93\1\2\x92\x09\1"), 1):
        assert table.apply(version, message) is None
    assert table.malformed == 4
    assert not table.pledges


def test_a_topic_changes_only_at_its_edition_and_counts_versions_from_its_creation() -> None:
    lane = Lane()
    assert lane.write(SwapTopic("t", 0, (("http://a", ""),), 5)).done
    assert not lane.write(SwapTopic("t", 0, (("http://b", ""),), 6)).done
    assert lane.write(SwapTopic("t", 1, (("http://a", ""), ("http://b", "b")), 7)).done
    assert lane.table.topics["t"].topic == Topic("t", (("http://a", ""), ("http://b", "b")), 2, 5, 7)
    assert lane.write(SwapTopic("t", 2, (), 8)).done
    assert lane.write(SwapTopic("t", 3, (("http://c", ""),), 9)).done
    assert lane.table.topics["t"].topic == Topic("t", (("http://c", ""),), 1, 9, 9)


def test_a_put_that_a_swap_has_overtaken_does_not_move_the_base() -> None:
    lane = Lane()
    lane.write(insert("a"))
    put = put_of(lane.table.pledges["a"])
    lane.write(swap("a", 1))
    assert not lane.write(put).done
    assert (lane.table.pledges["a"].base, lane.table.pledges["a"].pledge.revision) == (1, 2)
    assert lane.write(put_of(lane.table.pledges["a"])).done
    assert lane.table.trim_limit() == 3


def test_pledges_are_listed_newest_first_from_a_given_position() -> None:
    lane = Lane()
    for gid, created_ms in (("a", 3), ("b", 1), ("c", 2), ("d", 3)):
        lane.write(insert(gid, created_ms=created_ms))
    assert [pledge.gid for pledge in lane.table.before(None)] == ["d", "a", "c", "b"]
    assert [pledge.gid for pledge in lane.table.before((3, "a"))] == ["c", "b"]


def test_a_run_names_its_peer_and_incarnation() -> None:
    assert peer_of(RUN) == (2, 7)


@pytest.mark.parametrize("seed", range(60))
def test_a_table_is_the_same_from_any_trim_that_its_limit_allows(seed: int) -> None:
    """Random histories with late swaps, forgetting and compaction, as a coordinator does them."""
    random, lane = Random(seed), Lane()
    gids = [f"g{number}" for number in range(6)]
    trimmed_to = 0
    for _ in range(400):
        _one_step(random, lane, gids)
        if random.random() < 0.05:
            trimmed_to = max(trimmed_to, _compact(random, lane))
    for begin in sorted({0, trimmed_to, random.randint(0, trimmed_to), lane.table.trim_limit()}):
        table = lane.rebuilt(trimmed_to=begin)
        assert table.pledges == lane.table.pledges
        assert table.topics == lane.table.topics
        assert list(table.before(None)) == list(lane.table.before(None))
        assert table.trim_limit() == lane.table.trim_limit()


def _one_step(random: Random, lane: Lane, gids: list[str]) -> None:
    gid, chance = random.choice(gids), random.random()
    known = lane.table.pledges.get(gid)
    revision = known.pledge.revision if known is not None else 1
    created_ms = known.pledge.progress.created_ms if known is not None else 1
    if chance < 0.3:
        lane.write(insert(gid, created_ms=random.randint(1, 5)), run=random.randint(1, 3))
    elif chance < 0.8:
        late = max(1, revision - random.choice((0, 0, 0, 1, 2)))
        status: Status = random.choice(("submitted", "submitted", "succeeded"))
        lane.write(swap(gid, late, status, created_ms=created_ms), run=random.randint(1, 3))
    elif chance < 0.9 and known is not None and known.pledge.status == "succeeded":
        lane.write(Forget((gid,)))
    else:
        topic = lane.table.topics.get(gid)
        edition = max(0, (topic.edition if topic is not None else 0) - random.choice((0, 0, 1)))
        subscribers = tuple((f"http://{n}", "") for n in range(random.randint(0, 2)))
        lane.write(SwapTopic(gid, edition, subscribers, random.randint(1, 9)))


def _compact(random: Random, lane: Lane) -> int:
    """Puts are collected first and written a little later; swaps may happen in between, forgetting may not."""
    cut = lane.table.applied
    for _ in range(8):
        puts = [put_of(lane.table.pledges[gid]) for gid in lane.table.below(cut)]
        topics = [put_topic_of(lane.table.topics[name]) for name in lane.table.topics_below(cut)]
        changes: list[Change] = [*puts, *topics]
        for change in changes:
            if random.random() < 0.3:
                gid = random.choice(list(lane.table.pledges) or ["g0"])
                kept = lane.table.pledges.get(gid)
                if kept is not None:
                    lane.write(swap(gid, kept.pledge.revision, created_ms=kept.pledge.progress.created_ms))
                lane.write(insert(gid, created_ms=7))
            lane.write(change)
    return min(cut, lane.table.trim_limit())


def test_an_operation_in_memory_gives_the_same_table_as_its_message() -> None:
    changes: list[Change] = [
        insert("a"),
        swap("a", 1),
        insert("a"),
        swap("a", 1),
        swap("a", 2, "succeeded", release=True),
        insert("b"),
    ]
    read, known = LaneTable(), LaneTable()
    for version, change in enumerate(changes, 1):
        operation = Operation(RUN, version, change)
        (message,) = pieces_of(operation)
        assert known.apply(version, message, operation) == read.apply(version, message)
    assert known.pledges == read.pledges
    assert list(known.before(None)) == list(read.before(None))


def test_pledges_are_listed_in_order_whatever_order_they_arrived_in() -> None:
    lane, times = Lane(), [(37 * number) % 211 for number in range(211)]
    for created_ms in [*range(1_000, 1_100), *times, *range(900, 2_000, 7)]:
        lane.write(insert(f"g{created_ms}-{len(lane.messages)}", created_ms=created_ms))
    listed = [(pledge.progress.created_ms, pledge.gid) for pledge in lane.table.before(None)]
    assert listed == sorted(listed, reverse=True)
    assert len(listed) == len(lane.messages)
