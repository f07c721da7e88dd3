"""Group commit: waiting operations are performed together, and each gets its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from avow import limits
from avow.errors import Busy, InvalidRequest, Offline, Unknown
from avow.pledge.stores.grouped import GroupThread

TIMEOUT_S = 20.0


class Held:
    """A group waits until the test releases it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.refuse: Callable[[Sequence[int]], Exception | None] = lambda operations: None

    def perform(self, operations: Sequence[int]) -> list[Any]:
        self.groups.append(list(operations))
        self.began.release()
        assert self.go.acquire(timeout=TIMEOUT_S)
        error = self.refuse(operations)
        if error is not None:
            raise error
        return [ValueError(f"odd: {n}") if n % 2 else 10 * n for n in operations]


def _run(test: Callable[[Held, GroupThread[int]], Coroutine[Any, Any, None]], *, held: bool = True) -> None:
    async def main() -> None:
        replica = Held()
        if not held:
            replica.go = threading.Semaphore(10_000)
        thread: GroupThread[int] = GroupThread(replica.perform, name="replica")
        thread.start()
        async with asyncio.timeout(TIMEOUT_S):
            await test(replica, thread)
            replica.go.release(1_000)
            await thread.close()

    asyncio.run(main())


async def _ask(thread: GroupThread[int], *operations: int, size: int = 0) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(thread.ask(n, size=size)) for n in operations]
    await asyncio.sleep(0)
    return tasks


async def _began(replica: Held) -> None:
    await asyncio.to_thread(replica.began.acquire, timeout=TIMEOUT_S)


def test_operations_that_arrive_during_a_group_form_the_next_one() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        first = await _ask(thread, 2)
        await _began(replica)
        others = await _ask(thread, *range(4, 104, 2))
        replica.go.release(2)
        assert await asyncio.gather(*first, *others) == [20, *range(40, 1040, 20)]
        assert replica.groups == [[2], list(range(4, 104, 2))]
        seen = thread.statistics()
        assert (seen["operations"], seen["groups"], seen["largest_group"]) == (51, 2, 50)

    _run(test)


def test_an_operation_that_fails_is_the_only_one_that_fails() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        results = await asyncio.gather(*await _ask(thread, 0, 1, 2, 3), return_exceptions=True)
        assert (results[0], results[2]) == (0, 20)
        assert [str(results[1]), str(results[3])] == ["odd: 1", "odd: 3"]
        assert thread.statistics()["failures"] == 2

    _run(test, held=False)


def test_a_refused_group_is_retried_one_by_one_and_only_the_faulty_operation_fails() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        replica.refuse = lambda operations: InvalidRequest("six is bad") if 6 in operations else None
        await asyncio.gather(*await _ask(thread, 0))
        results = await asyncio.gather(*await _ask(thread, 2, 4, 6, 8), return_exceptions=True)
        assert (results[0], results[1], results[3]) == (20, 40, 80)
        assert isinstance(results[2], InvalidRequest)

    _run(test, held=False)


@pytest.mark.parametrize("error", [Offline("gone"), Unknown("lost"), Busy("later")])
def test_an_error_of_the_whole_group_is_reported_to_all_and_not_retried(error: Exception) -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        await _ask(thread, 0)
        await _began(replica)
        others = await _ask(thread, 2, 4, 6)
        replica.refuse = lambda operations: error if len(operations) == 3 else None
        replica.go.release(2)
        results = await asyncio.gather(*others, return_exceptions=True)
        assert [type(result) for result in results] == [type(error)] * 3
        assert len({id(result) for result in results}) == 3
        assert len(replica.groups) == 2

    _run(test)


def test_a_defect_reaches_its_callers_and_the_thread_continues() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        replica.refuse = lambda operations: KeyError("defect")
        with pytest.raises(KeyError):
            await thread.ask(2)
        replica.refuse = lambda operations: None
        assert await thread.ask(2) == 20

    _run(test, held=False)


def test_a_cancelled_task_does_not_affect_others() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        await _ask(thread, 0)
        await _began(replica)
        leaving, staying = await _ask(thread, 2, 4)
        leaving.cancel()
        replica.go.release(2)
        assert await staying == 40
        assert leaving.cancelled()
        assert replica.groups[1] == [2, 4]

    _run(test)


def test_a_group_is_bounded_in_number_and_in_bytes() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        await _ask(thread, 0)
        await _began(replica)
        many = await _ask(thread, *[2] * (limits.PLEDGE_GROUP_COUNT + 5))
        large = await _ask(thread, *[4] * 6, size=limits.PLEDGE_GROUP_SIZE_BYTES // 2)
        replica.go.release(100)
        await asyncio.gather(*many, *large)
        sizes = [len(group) for group in replica.groups]
        assert sizes[1] == limits.PLEDGE_GROUP_COUNT
        assert max(sizes[2:]) <= 7
        assert [group.count(4) for group in replica.groups[2:]] == [2, 2, 2]

    _run(test)


def test_too_many_waiters_are_refused_without_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLEDGE_WAITING_COUNT", 3)

    async def test(replica: Held, thread: GroupThread[int]) -> None:
        await _ask(thread, 0)
        await _began(replica)
        waiting = await _ask(thread, 2, 4, 6)
        with pytest.raises(Busy):
            await thread.ask(8)
        replica.go.release(10)
        assert await asyncio.gather(*waiting) == [20, 40, 60]
        assert all(8 not in group for group in replica.groups)

    _run(test)


def test_closing_waits_for_accepted_operations_and_refuses_the_rest() -> None:
    async def test(replica: Held, thread: GroupThread[int]) -> None:
        first = await _ask(thread, 0)
        await _began(replica)
        others = await _ask(thread, 2, 4)
        closing = asyncio.create_task(thread.close())
        await asyncio.sleep(0)
        with pytest.raises(Offline):
            await thread.ask(6)
        assert not closing.done()
        replica.go.release(10)
        assert await asyncio.gather(*first, *others) == [0, 20, 40]
        await closing
        await thread.close()

    _run(test)


def test_a_thread_that_never_started_refuses_and_closes() -> None:
    async def main() -> None:
        thread: GroupThread[int] = GroupThread(lambda operations: list(operations), name="idle")
        with pytest.raises(Offline):
            await thread.ask(1)
        await thread.close()

    asyncio.run(main())
