"""Links after a partition, on a virtual clock: how soon they work again, and when they are given up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from tests.virtual_loop import VirtualLoop, run_virtual

from avow.errors import PeerRemoved
from avow.limits import LINK_BEAT_S, LINK_DIAL_EVERY_S, LINK_SILENT_S
from avow.server.link_pulse import SILENT_BEATS, Due, Pulse, is_acknowledged
from avow.server.links import Link, Links
from avow.testing.cluster import wait_until
from avow.wire.frames import Alive, Hello, decode, decode_hello, encode
from avow.wire.messages import Heartbeat, Message
from avow.wire.versions import FIRST, NEWEST

BEAT = Heartbeat(1, coordinating=False, cursor=1)
LONGEST_S = 2 * LINK_DIAL_EVERY_S  # from the end of a partition to a link that works


def test_a_busy_process_whose_machine_acknowledges_is_not_a_broken_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with other, mine:
            for _ in range(3):
                mine.sendall(b"something that nobody reads")
            wait_until(lambda: is_acknowledged(mine), what="an acknowledgement")
        assert not is_acknowledged(mine), "a closed socket"
    left, right = socket.socketpair()
    with left, right:
        assert not is_acknowledged(left), "not TCP"


class End:
    """The part of a peer that its links use."""

    def __init__(self, number: int, *, newest: int = NEWEST) -> None:
        self.number, self.newest = number, newest
        self.heard: list[Message] = []
        self.dismissals = 0
        self.greetings = 0
        self.known: dict[int, str] = {}
        self.links = Links(self, me=number, addresses=lambda: self.known)

    def hello(self) -> Hello:
        return Hello(bytes(16), bytes([self.number]) * 16, self.number, 1, newest=self.newest)

    def greeted(self, hello: Hello) -> int:
        self.greetings += 1
        return min(hello.newest, self.newest)

    def received(self, source: int, route: int, message: Message) -> None:
        self.heard.append(message)

    def dismissed(self) -> None:
        self.dismissals += 1

    def not_understood(self, source: int, route: int, reason: str) -> None:
        raise AssertionError(f"peer {source} sent for lane {route} what was not understood: {reason}")


async def pair(*, newest: int = NEWEST) -> tuple[End, End]:
    low, high = End(1, newest=newest), End(2)
    host, port = await low.links.listen("127.0.0.1", 0)
    high.known[1] = f"{host}:{port}"
    high.links.dial_all()
    await within(1.0, lambda: low.links.connected == [2] and high.links.connected == [1])
    return low, high


async def within(seconds: float, predicate: Callable[[], object]) -> float:
    """How long it took; it is looked at every millisecond."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not predicate():
        assert loop.time() - began < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.001)
    return loop.time() - began


async def stop(*ends: End) -> None:
    for end in ends:
        await end.links.stop()


async def exchange(low: End, high: End) -> None:
    """Both directions work."""
    low.heard.clear()
    high.heard.clear()
    low.links.send(2, 0, BEAT)
    high.links.send(1, 0, BEAT)
    low.links.flush()
    high.links.flush()
    await within(0.01, lambda: low.heard and high.heard)


@pytest.mark.parametrize("partition_s", [0.01, 0.3, 0.7, 0.95, 1.0, 1.05, 1.5, 3.0, 3.3, 15.0, 40.0, 600.0])
def test_a_link_works_again_soon_after_a_partition_of_any_length(partition_s: float) -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        low, high = await pair()
        loop.cut = True
        await asyncio.sleep(partition_s)
        loop.cut = False
        healed = loop.time()
        low.heard.clear()
        high.heard.clear()

        def works() -> bool:
            for end, other in ((low, 2), (high, 1)):
                end.links.send(other, 0, BEAT)
                end.links.flush()
            return bool(low.heard and high.heard)

        await within(LINK_SILENT_S, works)
        if partition_s >= LINK_SILENT_S + 2 * LINK_BEAT_S:  # otherwise TCP itself repeats in time
            assert loop.time() - healed <= LONGEST_S
        await stop(low, high)

    run_virtual(program())


def test_an_idle_link_stays_open_and_costs_one_frame_in_each_beat() -> None:
    async def program() -> None:
        low, high = await pair()
        await asyncio.sleep(120)
        assert (low.greetings, high.greetings) == (1, 1)
        await exchange(low, high)
        assert len(low.heard) == 1, "an Alive is for the link, not for the peer"
        await stop(low, high)

    run_virtual(program())


def test_a_peer_of_the_first_release_is_not_judged_by_its_silence() -> None:
    async def program() -> None:
        low, high = await pair(newest=FIRST)
        await asyncio.sleep(120)
        assert (low.greetings, high.greetings) == (1, 1)
        await exchange(low, high)
        await stop(low, high)

    run_virtual(program())


def test_a_dead_peer_costs_a_few_attempts_in_a_second() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        low, high = await pair()
        loop.cut = True
        await asyncio.sleep(60)
        dials = [task for task in asyncio.all_tasks() if task.get_name().startswith("dial")]
        assert 1 < len(dials) <= 3.0 / LINK_DIAL_EVERY_S + 1
        loop.cut = False
        await stop(low, high)
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    run_virtual(program())


def test_silence_is_counted_in_beats_in_which_this_peer_could_read() -> None:
    pulse = Pulse(answered=True)
    for _ in range(SILENT_BEATS):
        pulse.said()
        assert pulse.beat() is Due.NOTHING
    pulse.heard()  # after a stall of its own, however long, there is one beat, and what waited is read
    assert [pulse.beat() for _ in range(SILENT_BEATS)] == [Due.SAY_ALIVE] * SILENT_BEATS
    assert pulse.beat() is Due.CLOSE


def test_a_peer_that_is_refused_learns_why_and_dials_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(End):
        def greeted(self, hello: Hello) -> int:
            super().greeted(hello)
            raise PeerRemoved("peer 2 was removed")

    async def program() -> None:
        low, high = Refusing(1), End(2)
        host, port = await low.links.listen("127.0.0.1", 0)
        high.known[1] = f"{host}:{port}"
        high.links.dial_all()
        await asyncio.sleep(60)
        assert 1 < high.dismissals < 25
        said = [line for line in caplog.messages if "refuses the link to this peer: peer 2 was removed" in line]
        assert len(said) == 1
        await stop(low, high)

    run_virtual(program())


class Recorded(asyncio.Transport):
    """The near end of a connection: what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        raise AssertionError("closed")

    abort = close


def test_a_dialled_connection_says_nothing_before_its_hello() -> None:
    async def program() -> None:
        end, transport = End(2), Recorded()
        link = Link(end.links, dialled=1)
        link.connection_made(transport)
        hello = b"".join(encode(0, Hello(bytes(16), bytes([1]) * 16, 1, 1)))
        link.get_buffer(-1)[: len(hello)] = hello
        link.buffer_updated(len(hello))
        for _ in range(10):
            link.beat()
        assert not transport.written
        assert end.links.connected == []
        link.greet()
        link.beat()
        hello_first, *rest = transport.written
        assert decode_hello(hello_first) == end.hello()
        assert [decode(frame)[1] for frame in rest] == [Alive()]
        assert end.links.connected == [1]

    run_virtual(program())
