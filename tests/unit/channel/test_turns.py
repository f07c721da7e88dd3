"""What one connection may do in one turn of the loop, as counts: others are served in between, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.unit.channel.memory_sockets import open_pair, run, turns
from tests.unit.channel.test_registry import code_of, come, hello

from avow.channel.endpoint import Channel
from avow.channel.protocol.events import Bounds
from avow.channel.protocol.frames import End, EndCode, ack_bytes, commit_bytes, data_parts, end_bytes
from avow.channel.registry import Registry
from avow.errors import InvalidRequest
from avow.limits import CHANNEL_TURN_FRAMES, CHANNEL_TURN_MESSAGES, CHANNEL_TURN_SIZE_BYTES

COUNT = 20_000
EMPTY_COMMITS = b"".join(commit_bytes(number, 0) for number in range(1, COUNT + 1))
EMPTY_MESSAGES = b"".join(data_parts(1, [b""] * COUNT))
SINGLE_MESSAGES = b"".join(b"".join(data_parts(number, [b""])) for number in range(1, COUNT + 1))
ACKS_OF_NOTHING = ack_bytes(0) * COUNT


class Turns:
    """Counts by turn of the loop: `now` is a number that grows by one each turn."""

    def __init__(self) -> None:
        self.now = 0
        self.counts: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._running = True
        self._tick()

    def _tick(self) -> None:
        self.now += 1
        if self._running:
            self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._running = False

    def count(self, number: int) -> None:
        self.counts[self.now] += number


@pytest.mark.parametrize("packet", [EMPTY_COMMITS, EMPTY_MESSAGES, SINGLE_MESSAGES], ids=["commits", "one", "many"])
def test_empty_commits_and_messages_take_many_turns_and_another_channel_is_served(packet: bytes) -> None:
    """Regression: 500,000 empty commits in one packet of 9 MiB stopped everything else in a peer for 15 s."""

    async def scenario() -> None:
        pair, other, counted = await open_pair(), await open_pair(), Turns()
        pair.socket.other.silenced = True  # or it learns of acknowledgements of what it never sent
        served: list[int] = []

        def committed(commit_id: int) -> None:
            counted.count(1)
            pair.far.ack_commit(commit_id)

        pair.far.on_messages, pair.far.on_commit = lambda values: counted.count(len(values)), committed
        other.far.on_messages = lambda values: served.append(counted.counts.total())
        pair.socket.send([packet])
        other.near.send(b"me too")
        while counted.counts.total() < COUNT:
            await asyncio.sleep(0)
        counted.stop()
        assert max(counted.counts.values()) <= CHANNEL_TURN_MESSAGES
        assert served
        assert served[0] < 4 * CHANNEL_TURN_MESSAGES

    run(scenario)


def test_acks_that_say_nothing_take_many_turns() -> None:
    async def scenario() -> None:
        pair, counted = await open_pair(), Turns()
        pair.socket.other.silenced = True
        pair.socket.send([ACKS_OF_NOTHING, commit_bytes(1, 0)])
        while not pair.far.core.incoming.commits_received_to:
            await asyncio.sleep(0)
        counted.stop()
        assert counted.now >= COUNT // CHANNEL_TURN_FRAMES

    run(scenario)


def test_large_messages_are_handed_over_a_few_at_a_time() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        taken: list[int] = []
        pair.far.on_messages = lambda values: taken.append(sum(map(len, values)))
        size = CHANNEL_TURN_SIZE_BYTES // 3
        pair.socket.send([b"".join(data_parts(1, [bytes(size)] * 8 + [bytes(3 * CHANNEL_TURN_SIZE_BYTES)]))])
        await turns(20)
        assert taken == [3 * size, 3 * size, 2 * size, 3 * CHANNEL_TURN_SIZE_BYTES]

    run(scenario)


def test_a_socket_is_not_read_while_its_channel_has_work_left() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        taken: list[bytes] = []
        pair.far.on_messages = lambda values: taken.extend(map(bytes, values))
        pair.socket.send(data_parts(1, [b""] * COUNT))
        pair.socket.send(data_parts(COUNT + 1, [b"last"]))
        most = 0
        while len(taken) <= COUNT:
            most = max(most, len(pair.far._unread))
            await asyncio.sleep(0)
        assert most <= 1, "packets pile up in the channel"
        assert taken[-1] == b"last"

    run(scenario)


def test_a_commit_comes_after_what_it_covers_and_before_anything_else() -> None:
    async def scenario() -> None:
        pair = await open_pair(bounds=Bounds(pending_count=20_000), keep={"bounds": Bounds()})
        events: list[int | str] = []
        pair.far.on_messages = lambda values: events.extend(int(value) for value in map(bytes, values))

        def committed(commit_id: int) -> None:
            events.append(f"commit {commit_id}")
            pair.far.ack_commit(commit_id)

        pair.far.on_commit = committed
        await turns()
        expected: list[int | str] = []
        for number in range(1, 5 * CHANNEL_TURN_MESSAGES + 1):
            pair.near.send(b"%d" % number)
            expected.append(number)
            if number % 700 == 0:
                pair.near.commit()
                expected.append(f"commit {number // 700}")
        await pair.near.commit()
        assert events == [*expected, f"commit {5 * CHANNEL_TURN_MESSAGES // 700 + 1}"]

    run(scenario)


def test_an_end_that_follows_much_work_is_heard_although_the_socket_is_lost_at_once() -> None:
    async def scenario() -> None:
        begun: list[Channel] = []
        stranger = come(Registry(window_s=10.0, channels_max=4), begun=begun)
        await stranger.say(hello())
        (far,) = begun
        taken: list[memoryview] = []
        ends: list[int] = []
        far.on_messages, far.on_end = taken.extend, lambda failure: ends.append(len(taken))
        stranger.socket.send([EMPTY_MESSAGES, ACKS_OF_NOTHING, end_bytes(End(EndCode.ABORTED))])
        stranger.socket.lose(soon=True)
        failed = await far.wait_ended()
        assert failed is not None
        assert (failed.reason, ends) == ("ABORTED", [COUNT])

    run(scenario)


def test_what_was_not_read_of_a_replaced_socket_counts_as_lost() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        taken: list[bytes] = []
        pair.far.on_messages = lambda values: taken.extend(map(bytes, values))
        for number in range(3 * CHANNEL_TURN_FRAMES):
            pair.near.send(b"%d" % number)
            pair.near.commit()
        await turns(3)
        pair.near.cut()
        await pair.near.commit()
        assert taken == [b"%d" % number for number in range(3 * CHANNEL_TURN_FRAMES)]

    run(scenario)


def test_nothing_more_is_handed_to_an_application_that_refused() -> None:
    async def scenario() -> None:
        pair = await open_pair()
        calls: list[int] = []

        def refuse(values: list[memoryview]) -> None:
            calls.append(len(values))
            raise InvalidRequest("not this")

        pair.far.on_messages = refuse
        pair.socket.send([EMPTY_MESSAGES])
        failed = await pair.near.wait_ended()
        assert failed is not None
        assert (failed.reason, len(calls)) == ("REFUSED", 1)

    run(scenario)


def test_frames_behind_the_first_hello_are_not_even_parsed() -> None:
    async def scenario() -> None:
        stranger = come(Registry(window_s=10.0, channels_max=4))
        await stranger.say(hello() + EMPTY_COMMITS + b"\xff")
        assert code_of(stranger) is EndCode.PROTOCOL
        assert "single Hello" in stranger.heard[-1].text

    run(scenario)
