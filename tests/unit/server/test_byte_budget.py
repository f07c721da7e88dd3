"""The budget of a peer's bytes: bounds, order, and that nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from avow.limits import KIB
from avow.server.byte_budget import FREE_SIZE_BYTES, WAITING_MAX, Account, ByteBudget, Share, Waiting

SIZE = 1000 * KIB


def test_small_pieces_need_no_room_even_while_others_wait() -> None:
    share = Share("answers", SIZE)
    large, next_, small = share.open(), share.open(), share.open()
    assert large.take(SIZE)
    assert not next_.take(FREE_SIZE_BYTES + 1)
    assert next_.wait(SIZE, lambda: None)
    assert small.take(FREE_SIZE_BYTES)
    assert (small.held, share.held, share.waiting) == (0, SIZE, 1)


def test_room_is_given_in_the_order_it_was_asked_for() -> None:
    share, order = Share("requests", SIZE), list[str]()
    first = share.open()
    assert first.take(SIZE)
    assert share.open().wait(SIZE, lambda: order.append("large"))
    assert share.open().wait(100 * KIB, lambda: order.append("smaller"))
    first.hold(500 * KIB)
    assert order == []  # the smaller one would fit, but the large one would wait for ever
    assert not share.open().take(100 * KIB)
    first.hold(0)
    assert order == ["large"]
    assert share.held == SIZE


def test_those_that_hold_nothing_go_before_those_that_hold_some() -> None:
    share, order = Share("pushed", SIZE), list[str]()
    much, some, none = share.open(), share.open(), share.open()
    assert much.take(800 * KIB)
    assert some.take(200 * KIB)
    assert some.wait(300 * KIB, lambda: order.append("some"))
    assert none.wait(300 * KIB, lambda: order.append("none"))
    much.hold(500 * KIB)
    assert order == ["none"]
    much.hold(200 * KIB)
    assert order == ["none", "some"]


def test_a_piece_larger_than_the_share_gets_room_alone() -> None:
    share, granted = Share("requests", SIZE), list[int]()
    small, large = share.open(), share.open()
    assert small.take(100 * KIB)
    assert not large.take(5 * SIZE)
    assert large.wait(5 * SIZE, lambda: granted.append(1))
    small.hold(0)
    assert granted == [1]
    assert share.held == 5 * SIZE


def test_a_wait_that_is_cancelled_makes_way_for_the_next() -> None:
    share, granted = Share("answers", SIZE), list[int]()
    assert share.open().take(600 * KIB)
    large = share.open().wait(SIZE, lambda: granted.append(0))
    assert share.open().wait(300 * KIB, lambda: granted.append(1))
    assert large is not None
    share.cancel(large)
    share.cancel(large)
    assert granted == [1]


def test_too_many_who_wait_are_refused() -> None:
    share = Share("requests", SIZE)
    assert share.open().take(SIZE)
    waits = [share.open().wait(SIZE, lambda: None) for _ in range(WAITING_MAX + 2)]
    assert waits.count(None) == 2
    assert share.refused == 2


def test_one_reader_never_takes_all_the_room() -> None:
    share = Share("answers", 64 * SIZE)
    assert share.part_for_one(SIZE) == SIZE
    parts = []
    for _ in range(100):
        account = share.open()
        parts.append(share.part_for_one(64 * SIZE))
        assert account.take(parts[-1])
    assert parts == sorted(parts, reverse=True)
    assert share.held <= share.size_bytes_max
    assert parts[-1] >= FREE_SIZE_BYTES


def test_the_shares_are_the_whole_budget() -> None:
    budget = ByteBudget(SIZE)
    assert sum(share.size_bytes_max for share in budget.shares) == SIZE
    assert set(budget.statistics()) == {"requests", "answers", "received", "pushed"}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * SIZE)), max_size=60), st.randoms())
def test_everybody_who_waits_gets_room_once_the_others_are_done(asks: list[tuple[int, int]], random: object) -> None:
    """Clients come in any order; each releases what it got later, in any order. The bound holds all the time."""
    share = Share("requests", SIZE)
    holding: list[Account] = []
    waiting: list[Waiting] = []
    got = 0
    for _, size in asks:
        account = share.open()
        if account.take(size):
            holding.append(account)
            continue
        wait = account.wait(size, lambda account=account: holding.append(account))  # type: ignore[misc]
        if wait is not None:
            waiting.append(wait)
    while holding:
        biggest = max(one.held for one in holding)
        assert share.held <= max(SIZE, biggest)
        holding.pop(random.randrange(len(holding))).hold(0)  # type: ignore[attr-defined]
        got += 1
    assert (share.held, share.waiting) == (0, 0)
    assert got == len(asks)
