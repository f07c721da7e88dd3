"""When a store's thread gets its next group: at once if enough operations wait, else one turn of the loop later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from avow.pledge.stores.grouped import GroupThread

TIMEOUT_S = 20.0


class Held:
    """Performs a group when the test releases it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def perform(self, operations: Sequence[int]) -> list[int]:
        self.groups.append(list(operations))
        self.began.release()
        assert self.go.acquire(timeout=TIMEOUT_S)
        return list(operations)


async def _waiting(thread: GroupThread[int], operations: range, *, again: int = 0) -> list[asyncio.Task[int]]:
    async def ask(number: int) -> int:
        first: int = await thread.ask(number)
        return first if not again else await thread.ask(number + again)

    tasks = [asyncio.create_task(ask(number)) for number in operations]
    await asyncio.sleep(0)
    return tasks


async def _begun(held: Held) -> None:
    assert await asyncio.to_thread(held.began.acquire, timeout=TIMEOUT_S)


def _run(first: range, meanwhile: range) -> list[list[int]]:
    """Groups, if callers in `first` submit again at once (numbers from 100) and `meanwhile` arrive during a group."""
    held = Held()

    async def main() -> None:
        thread: GroupThread[int] = GroupThread(held.perform, name="held")
        thread.start()
        async with asyncio.timeout(TIMEOUT_S):
            tasks = await _waiting(thread, first, again=100)
            await _begun(held)
            tasks += await _waiting(thread, meanwhile)
            held.go.release(100)
            await asyncio.gather(*tasks)
            await thread.close()

    asyncio.run(main())
    return held.groups


def test_operations_of_one_loop_turn_form_one_group() -> None:
    assert _run(range(50), range(0))[0] == list(range(50))


def test_with_few_waiters_just_answered_callers_join_the_next_group() -> None:
    assert _run(range(10), range(50, 54)) == [list(range(10)), [*range(50, 54), *range(100, 110)]]


def test_many_waiters_leave_at_once_and_the_others_form_the_next_group() -> None:
    assert _run(range(10), range(50, 56)) == [list(range(10)), list(range(50, 56)), list(range(100, 110))]


def test_operations_before_close_are_performed_even_in_the_same_turn() -> None:
    async def main() -> None:
        held = Held()
        held.go.release(100)
        thread: GroupThread[int] = GroupThread(held.perform, name="held")
        thread.start()
        async with asyncio.timeout(TIMEOUT_S):
            tasks = await _waiting(thread, range(3))
            await thread.close()
            assert await asyncio.gather(*tasks) == [0, 1, 2]

    asyncio.run(main())
