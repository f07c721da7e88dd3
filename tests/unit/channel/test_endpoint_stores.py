"""A channel and its store: when messages are stored, and what happens if that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.unit.channel.memory_sockets import open_pair, run, turns

from avow.channel.stores import MemoryStore


class WatchedStore(MemoryStore):
    """Records its contents over time, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[tuple[int, int]] = []
        self.failing = False

    def append(self, number: int, values: Sequence[Any]) -> None:
        if self.failing:
            raise OSError("no space left")
        self.appended.append((number, len(values)))
        super().append(number, values)


def test_a_store_holds_a_message_from_before_it_is_sent_until_it_is_acknowledged() -> None:
    async def scenario() -> None:
        store = WatchedStore()
        pair = await open_pair(store=store)
        pair.far.on_messages = lambda values: None
        pair.far.on_commit = lambda commit_id: None
        for number in range(5):
            pair.near.send(b"%d" % number)
        assert store.appended == []
        await turns(1)
        assert store.appended == [(1, 5)]
        pair.near.commit()
        pair.near.send(b"last")
        await turns()
        assert store.load() == [b"0", b"1", b"2", b"3", b"4", b"last"]
        pair.far.ack_commit(1)
        await turns()
        assert store.load() == [b"last"]
        pair.near.abort()
        failed = await pair.near.wait_ended()
        assert failed is not None
        again = await open_pair(store=store)
        again.near.resend(failed.pending)
        await turns()
        assert store.load() == [b"last"]
        again.far.on_messages = lambda values: None
        await again.near.commit()
        assert store.load() == []

    run(scenario)


def test_a_message_that_the_store_cannot_keep_is_not_sent() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        store = WatchedStore()
        pair = await open_pair(store=store)
        seen: list[bytes] = []
        pair.far.on_messages = lambda values: seen.extend(map(bytes, values))
        store.failing = True
        pair.near.send(b"one")
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert [(one.value, one.fate) for one in failed.pending] == [(b"one", "unsent")]
        await pair.far.wait_ended()
        assert seen == []

    run(scenario, reported=reported)
    assert [type(context["exception"]) for context in reported] == [OSError]
