"""The due index of a lane of pledges: what its coordinator has to do, and when."""

from msgspec.structs import replace

from avow.pledge.record import NEVER_MS, Content, Pledge, Progress, Status
from avow.pledge.stores.lane.due import DueIndex


def pledge(
    gid: str,
    *,
    next_at_ms: int = 10,
    status: Status = "submitted",
    revision: int = 1,
    finished_ms: int = 0,
    owner: str = "",
    lease_until_ms: int = 0,
    held: bool = False,
) -> Pledge:
    progress = Progress(status, 1, 1, next_at_ms, finished_ms=finished_ms, held=held)
    return Pledge(Content(gid), progress, revision, 0, owner, lease_until_ms)


def agenda_of(*pledges: Pledge, run: int = 1) -> tuple[DueIndex, dict[str, Pledge]]:
    due_index = DueIndex()
    for item in pledges:
        due_index.update(item, run=run)
    return due_index, {item.gid: item for item in pledges}


def claim_all(due_index: DueIndex, known: dict[str, Pledge], *, now_ms: int, owner: str = "me") -> list[str]:
    found = []
    while (claimed := due_index.claim_first(known.__getitem__, owner=owner, now_ms=now_ms, lease_ms=100)) is not None:
        found.append(claimed.gid)
    return found


def test_the_longest_due_pledge_is_claimed_first_and_once() -> None:
    due_index, known = agenda_of(pledge("a", next_at_ms=30), pledge("b", next_at_ms=10), pledge("c", next_at_ms=90))
    assert due_index.first_due_ms() == 10
    assert claim_all(due_index, known, now_ms=50) == ["b", "a"]
    assert claim_all(due_index, known, now_ms=50) == []
    assert due_index.first_due_ms() == 90


def test_an_unreleased_claim_expires_and_raises_the_fence() -> None:
    due_index, known = agenda_of(pledge("a"))
    first = due_index.claim_first(known.__getitem__, owner="me", now_ms=50, lease_ms=100)
    assert first is not None
    assert (first.owner, first.lease_until_ms, first.fence) == ("me", 150, 1)
    assert due_index.claim(known["a"], owner="you", now_ms=149, lease_ms=100) is None
    second = due_index.claim(known["a"], owner="you", now_ms=150, lease_ms=100)
    assert second is not None
    assert second.fence == 2
    assert due_index.shown(known["a"]).fence == 2


def test_the_holder_of_a_pledge_may_claim_it_again() -> None:
    due_index, known = agenda_of(pledge("a"))
    due_index.claim(known["a"], owner="me", now_ms=0, lease_ms=100)
    again = due_index.claim(known["a"], owner="me", now_ms=50, lease_ms=100)
    assert again is not None
    assert again.lease_until_ms == 150


def test_a_released_pledge_is_due_at_its_time_and_its_fence_continues() -> None:
    due_index, known = agenda_of(pledge("a"))
    claim_all(due_index, known, now_ms=50)
    due_index.release("a")
    known["a"] = pledge("a", next_at_ms=60, revision=2)
    due_index.update(known["a"], run=1)
    assert due_index.first_due_ms() == 60
    claimed = due_index.claim_first(known.__getitem__, owner="me", now_ms=60, lease_ms=100)
    assert claimed is not None
    assert claimed.fence == 2


def test_a_lease_stored_in_the_pledge_is_respected() -> None:
    due_index, known = agenda_of(pledge("a", owner="other", lease_until_ms=200))
    assert due_index.first_due_ms() == 200
    assert due_index.claim(known["a"], owner="me", now_ms=100, lease_ms=100) is None


def test_pledges_held_by_an_ended_run_are_due_at_once() -> None:
    due_index, known = agenda_of(pledge("a", next_at_ms=17_000, held=True), run=3)
    due_index.update(pledge("b", next_at_ms=17_000, held=True), run=4)
    due_index.update(pledge("c", next_at_ms=17_000), run=3)
    due_index.release_gone(lambda run: run == 3)
    assert claim_all(due_index, known, now_ms=50) == ["a"]
    assert due_index.statistics() == {"due": 3, "held": 1}


def test_a_pledge_in_delivery_keeps_its_lease_when_its_run_ends() -> None:
    due_index, known = agenda_of(pledge("a"), run=3)
    claim_all(due_index, known, now_ms=50)
    due_index.update(pledge("a", next_at_ms=500, revision=2, held=True), run=3)
    due_index.release_gone(lambda run: run == 3)
    assert due_index.first_due_ms() == 150


def test_nothing_is_done_for_a_finished_pledge() -> None:
    due_index, known = agenda_of(pledge("a"), pledge("b"))
    claim_all(due_index, known, now_ms=50)
    over = pledge("a", next_at_ms=NEVER_MS, status="succeeded", finished_ms=70, revision=2)
    due_index.update(over, run=1)
    due_index.drop("b")
    assert due_index.first_due_ms() == NEVER_MS
    assert due_index.claim(over, owner="me", now_ms=500, lease_ms=1) is None


def test_finished_pledges_are_returned_once_oldest_first_and_dead_ones_never() -> None:
    over = [
        pledge("a", next_at_ms=NEVER_MS, status="succeeded", finished_ms=30),
        pledge("b", next_at_ms=NEVER_MS, status="failed", finished_ms=20),
        pledge("c", next_at_ms=NEVER_MS, status="dead", finished_ms=10),
        pledge("d", next_at_ms=NEVER_MS, status="failed", finished_ms=40),
    ]
    due_index, known = agenda_of(*over)
    due_index.update(over[0], run=1)
    assert due_index.take_finished(known.get, before_ms=40, limit=1) == ["b"]
    assert due_index.take_finished(known.get, before_ms=40, limit=5) == ["a"]
    due_index.update(over[1], run=1)
    del known["d"]
    assert due_index.take_finished(known.get, before_ms=99, limit=5) == ["b"]


def test_a_redriven_pledge_is_not_forgotten() -> None:
    over = pledge("a", next_at_ms=NEVER_MS, status="failed", finished_ms=30)
    due_index, known = agenda_of(over)
    known["a"] = replace(over, progress=replace(over.progress, status="submitted", finished_ms=0))
    assert due_index.take_finished(known.get, before_ms=40, limit=1) == []
