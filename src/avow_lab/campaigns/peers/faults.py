"""Faults of peers, one after another, drawn from a seed.

    kill          kill -9 of any peer, or of a lane's coordinator; started again after a moment
    restart       orderly, one peer after the other, while all sessions stream over channels; where clients go through a
                  proxy, they lose their connections to each peer just before, and what they send then arrives late
    pause         SIGSTOP for 0.2 to 6 s: the process stops, its connections stay open
    stall         the event loop of one peer stops for 1 to 4 s, and its other threads go on
    partition     one peer alone; one direction only; or a bridge: two peers that do not reach each other
    lossy         one peer loses some or all packets that others send to it, and they its, for up to 20 s
    slow          bytes to and from one peer are delayed
    filled        one peer's disk is full
    damage        bytes of lane files or of the log change on the disk of one peer that is down; or a minority is away,
                  writes go on, the others are killed, one of them loses a file, and it starts first with those that
                  were away
    wiped         all founders are stopped, and a majority of them starts on empty folders: it must not be a cluster
    expire        transactions over several lanes, under deadlines that pass, while a coordinator is killed
    slow-readers  clients ask one peer for much, and read little or nothing
    many-lanes    clients create many queues at once, and delete them
    late          a client repeats a write that its lane has forgotten
    add, remove   a peer joins or leaves

At most a minority is affected at a time: a fault is undone, and the cluster whole again, before the next one. Kinds are
drawn from a shuffled deck, so that even a short campaign has each of them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct

from avow.errors import Offline
from avow_lab.campaigns.harness.peer_program import STALLS_S
from avow_lab.campaigns.peers import file_loss
from avow_lab.campaigns.peers.client_faults import create_and_delete, read_slowly, repeat_late
from avow_lab.campaigns.peers.client_session import Emphasis
from avow_lab.campaigns.peers.history import WRITES, History, Outcome
from avow_lab.campaigns.peers.network import CLIENTS, Pair
from avow_lab.campaigns.peers.testbed import RECOVERY_S, Testbed

KINDS: Final = (
    "kill",
    "restart",
    "pause",
    "stall",
    "partition",
    "lossy",
    "slow",
    "filled",
    "damage",
    "wiped",
    "expire",
    "slow-readers",
    "many-lanes",
    "late",
    "add",
    "remove",
)
LONG_S: Final = 600.0  # from here on the longest faults last as long as they ever do, and `late` is in the deck
LOSSY_S: Final = (1.5, 20.0)
LOSSES_PERCENT: Final = (20, 60, 100, 100)
BRIEF_QUEUES: Final = (12, 100)
MEMBERS_MAX_MORE: Final = 2
_DECK: Final = {
    "kill": ("kill any", "kill coordinator", "kill coordinator"),
    "restart": ("restart",),
    "pause": ("pause", "pause"),
    "stall": ("stall",),
    "partition": ("partition minority", "partition one-way", "partition bridge"),
    "lossy": ("lossy",),
    "slow": ("slow",),
    "filled": ("filled",),
    "damage": ("damage lanes", "damage log", "damage file", "damage file"),
    "wiped": ("wiped",),
    "expire": ("expire",),
    "slow-readers": ("slow-readers",),
    "many-lanes": ("many-lanes",),
    "late": ("late",),
    "add": ("add",),
    "remove": ("remove",),
}
_UNFIT: Final = ("UNFIT_TO_VOTE", "may not vote", "must not vote", "STORAGE_DAMAGED")


class Fault(Struct):
    """`queue` and `lane`: whose coordinator was killed."""

    kind: str
    what: str
    started_ns: int
    ended_ns: int = 0
    recovered_ns: int = 0
    note: str = ""
    queue: str = ""
    lane: int = -1


class Faults:
    """`lanes` are the two-phase lanes whose coordinators may be killed, as (queue, index). `seconds`: of the campaign;
    the longest faults are shorter in a short one. `emphasis`: what faults ask of the sessions."""

    def __init__(
        self,
        testbed: Testbed,
        *,
        kinds: Sequence[str],
        seed: int,
        lanes: Sequence[tuple[str, int]],
        clock_ns: Callable[[], int],
        seconds: float,
        emphasis: Emphasis,
        history: History,
    ) -> None:
        self._share = min(1.0, seconds / LONG_S)
        self._emphasis, self._history = emphasis, history
        self.testbed, self._kinds, self._lanes, self._clock_ns = testbed, tuple(kinds), tuple(lanes), clock_ns
        self._random = random.Random(seed)
        self._deck: list[str] = []
        self._peers_wanted = len(testbed.members)
        self._losses = file_loss.in_turn(self._random)
        self.performed: list[Fault] = []
        self.current = ""
        self.stuck = ""

    async def run(self, until: Callable[[], bool]) -> None:
        """One fault after another until `until` is true. The last one is undone too."""
        while self._kinds and not until() and not self.stuck:
            await asyncio.sleep(self._random.uniform(0.3, 1.5))
            await self.perform(self._next())

    async def perform(self, kind: str) -> Fault | None:
        """Inject a fault, undo it, and wait until the cluster is whole. None when it does not apply now."""
        act: Callable[[Fault], Awaitable[bool]] = getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))
        fault = Fault(kind, kind, self._clock_ns())
        self.current = kind
        try:
            applied = await act(fault)
        except Offline as error:
            self.stuck, applied = f"{fault.what}: {error}", True
        finally:
            self.testbed.network.heal()
            self._emphasis.streams = self._emphasis.deadlines = False
            self.current = ""
        fault.ended_ns = self._clock_ns()
        if not applied:
            return None
        self.performed.append(fault)
        if not self.stuck:
            await self._recover(fault)
        return fault

    async def _recover(self, fault: Fault) -> None:
        missing = await asyncio.to_thread(self.testbed.wait_whole) or await self._wait_writes(fault)
        fault.recovered_ns = self._clock_ns()
        if missing:
            self.stuck = f"after {fault.what}: {missing}"

    async def _wait_writes(self, fault: Fault) -> str:
        """A write that was requested after the fault was undone is acknowledged in every queue that has sessions.
        Returns the queues without one; empty: none."""
        queues = {op.queue for op in self._history.ops}
        deadline = time.monotonic() + RECOVERY_S
        while time.monotonic() < deadline:
            newest = takewhile(lambda op: op.invoked_ns > fault.ended_ns, reversed(self._history.ops))
            waiting = queues - {op.queue for op in newest if op.kind in WRITES and op.outcome is Outcome.DONE}
            if not waiting:
                return ""
            await asyncio.sleep(0.1)
        return f"no write to {', '.join(sorted(waiting))} was acknowledged for {RECOVERY_S:g} s"

    def _next(self) -> str:
        if not self._deck:
            self._deck = [card for kind in self._kinds for card in _DECK[kind]]
            self._random.shuffle(self._deck)
        return self._deck.pop()

    # ------------------------------------------------------------------ processes

    def _any(self) -> int:
        return self._random.choice(sorted(self.testbed.members))

    def _others(self, peer: int) -> list[int]:
        return sorted(self.testbed.members - {peer})

    async def _kill_any(self, fault: Fault) -> bool:
        return await self._kill(fault, self._any())

    async def _kill_coordinator(self, fault: Fault) -> bool:
        if not self._lanes:
            return False
        queue, index = self._random.choice(self._lanes)
        number = await asyncio.to_thread(self.testbed.coordinator, queue, index)
        if not number:
            return False
        fault.queue, fault.lane = queue, index
        return await self._kill(fault, number, f"coordinator of {queue}/{index}, ")

    async def _kill(self, fault: Fault, number: int, who: str = "") -> bool:
        fault.what = f"kill -9 of {who}peer {number}"
        fault.started_ns = self._clock_ns()
        await asyncio.to_thread(self.testbed.cluster.kill, number)
        await asyncio.sleep(self._random.uniform(0.2, 4.0))
        await asyncio.to_thread(self.testbed.cluster.restart, number, ready=False)
        return True

    async def _restart(self, fault: Fault) -> bool:
        order = sorted(self.testbed.members)
        self._random.shuffle(order)
        fault.what = f"rolling restart of peers {', '.join(map(str, order))}"
        self._emphasis.streams = True
        for number in order:
            if self.testbed.network.clients:
                await self._cut_clients(number)
            await asyncio.to_thread(self.testbed.cluster.stop, number)
            self.testbed.network.heal()
            await asyncio.to_thread(self.testbed.cluster.restart, number)
        return True

    async def _cut_clients(self, number: int) -> None:
        """Clients of this peer get no answers, then lose their connections. On the next ones they are heard late, so
        that some of them are between a connection and their Hello when the peer is asked to stop."""
        network, delay_s = self.testbed.network, self._random.choice([0.1, 0.3])
        network.hold([(number, CLIENTS)], cut=False)
        await asyncio.sleep(self._random.uniform(0.2, 0.5))
        network.hold([(number, CLIENTS)], cut=True)
        network.heal()
        network.slow([(CLIENTS, number)], delay_s)
        await asyncio.sleep(delay_s * self._random.uniform(1.0, 2.2))

    async def _stall(self, fault: Fault) -> bool:
        if not self.testbed.stalls:
            return False
        number, seconds = self._any(), self._random.choice(STALLS_S)
        fault.what = f"event loop of peer {number} stalled for {seconds} s"
        self.testbed.stall(number, seconds)
        await asyncio.sleep(seconds + 0.2)
        return True

    async def _pause(self, fault: Fault) -> bool:
        number, pause_s = self._any(), self._random.choice([0.2, 0.4, 1.0, 2.0, 6.0])
        fault.what = f"peer {number} paused for {pause_s:g} s"
        self.testbed.cluster.pause(number)
        try:
            await asyncio.sleep(pause_s)
        finally:
            self.testbed.cluster.resume(number)
        return True

    # ------------------------------------------------------------------ network

    async def _partition_minority(self, fault: Fault) -> bool:
        number = self._any()
        fault.what = f"peer {number} cut off"
        return await self._hold(fault, both((number, other) for other in self._others(number)))

    async def _partition_one_way(self, fault: Fault) -> bool:
        number = self._any()
        others = self._others(number)
        outgoing = self._random.choice([True, False])
        fault.what = f"peer {number} {'does not reach' if outgoing else 'is not reached by'} {others}"
        pairs = [(number, other) if outgoing else (other, number) for other in others]
        return await self._hold(fault, pairs)

    async def _partition_bridge(self, fault: Fault) -> bool:
        a, b = self._random.sample(sorted(self.testbed.members), 2)
        fault.what = f"no link between peers {a} and {b}"
        return await self._hold(fault, both([(a, b)]))

    async def _hold(self, fault: Fault, pairs: Iterable[Pair]) -> bool:
        how = self.testbed.network.hold(list(pairs), cut=self._random.random() < 0.5)
        fault.what += f", {how}"
        await asyncio.sleep(self._random.uniform(0.5, 6.0))
        return True

    async def _lossy(self, fault: Fault) -> bool:
        number, percent = self._any(), self._random.choice(LOSSES_PERCENT)
        pairs = both((number, other) for other in self._others(number))
        how = self.testbed.network.lose(pairs, percent)
        fault.what = f"links of peer {number}: {how}"
        await asyncio.sleep(self._random.uniform(LOSSY_S[0], max(LOSSY_S[0], LOSSY_S[1] * self._share)))
        return True

    async def _slow(self, fault: Fault) -> bool:
        if not self.testbed.network.slows:
            return False
        number, delay_s = self._any(), self._random.choice([0.02, 0.1, 0.3])
        fault.what = f"links of peer {number} slowed by {delay_s * 1000:g} ms"
        self.testbed.network.slow(both((number, other) for other in self._others(number)), delay_s)
        await asyncio.sleep(self._random.uniform(1.0, 4.0))
        return True

    # ------------------------------------------------------------------ disks

    async def _filled(self, fault: Fault) -> bool:
        if not self.testbed.fillable:
            return False
        number = self._any()
        fault.what = f"disk of peer {number} filled up"
        await asyncio.to_thread(self.testbed.fill, number)
        try:
            await asyncio.sleep(self._random.uniform(1.0, 5.0))
        finally:
            self.testbed.unfill(number)
        if not self.testbed.cluster.process(number).alive:  # a peer on a full disk may end itself
            fault.note = "the process ended"
            await asyncio.to_thread(self.testbed.cluster.restart, number, ready=False)
        return True

    async def _damage_lanes(self, fault: Fault) -> bool:
        return await self._damage(fault, "lanes/*/*.log", "lane files", share=1.0)

    async def _damage_log(self, fault: Fault) -> bool:
        """Not at the end of the log: there a peer cannot tell damage from a write that a crash tore, and drops it."""
        return await self._damage(fault, "wal/*", "the log", share=0.5)

    async def _damage(self, fault: Fault, pattern: str, name: str, *, share: float) -> bool:
        number = self._any()
        await asyncio.to_thread(self.testbed.cluster.kill, number)
        folder = self.testbed.cluster.data(number)
        files = [path for path in sorted(folder.glob(pattern)) if file_loss.used_bytes(path)]
        chosen = self._random.sample(files, min(len(files), 2))
        hurt = sum(file_loss.flip(path, self._random, share=share) for path in chosen)
        fault.what = f"{hurt} bytes of {name} of peer {number} changed"
        try:
            await asyncio.to_thread(self.testbed.cluster.restart, number)
        except Offline as error:
            await self._replace(fault, number, error)
        else:
            await self._see_repaired(fault, number)
        return True

    async def _damage_file(self, fault: Fault) -> bool:
        """One file of one peer is lost while a minority does not know what the others acknowledged. Started together,
        the peers that were away and the one that lost a file are as many as a quorum, and must not act as one."""
        order = self._random.sample(sorted(self.testbed.members), len(self.testbed.members))
        away, victim, rest = order[: (len(order) - 1) // 2], order[-1], order[(len(order) - 1) // 2 : -1]
        testbed, cluster = self.testbed, self.testbed.cluster
        earlier = testbed.folder / "earlier"
        for number in away:
            await asyncio.to_thread(cluster.stop, number)
        await asyncio.to_thread(file_loss.copy_folder, cluster.data(victim), earlier)
        await asyncio.sleep(self._random.uniform(0.3, 1.5))
        for number in (*rest, victim):
            await asyncio.to_thread(cluster.kill, number)
        done = ""
        while not done:
            kind, loss = next(self._losses)
            done = await asyncio.to_thread(file_loss.lose, cluster.data(victim), earlier, kind, loss, self._random)
        await asyncio.to_thread(shutil.rmtree, earlier)
        fault.what = f"{done} on peer {victim} while peers {', '.join(map(str, away))} were away"
        for number in away:
            await asyncio.to_thread(cluster.restart, number, ready=False)
        refusal = await asyncio.to_thread(self._start_damaged, victim)
        await asyncio.sleep(self._random.uniform(0.5, 1.5))
        for number in rest:
            await asyncio.to_thread(cluster.restart, number, ready=False)
        if refusal is not None:
            missing = await asyncio.to_thread(testbed.wait_whole, but=victim)
            if missing:
                self.stuck = f"after {fault.what}: {missing}"
                return True
            await self._replace(fault, victim, refusal)
        await self._see_repaired(fault, victim)
        return True

    def _start_damaged(self, number: int) -> Offline | None:
        """How the peer refused to start; None: it runs."""
        try:
            self.testbed.cluster.restart(number, ready=False)
        except Offline as error:
            return error
        return None

    async def _see_repaired(self, fault: Fault, number: int) -> None:
        """No second copy is damaged while the first is not repaired, since two damaged copies may be a majority."""
        missing = await asyncio.to_thread(self.testbed.wait_whole)
        if not missing and number in self.testbed.members:
            missing = await asyncio.to_thread(self.testbed.unreadable, number)
        if missing:
            fault.note = f"not repaired: {missing}; nothing else was damaged after that"
            self._kinds = tuple(kind for kind in self._kinds if kind != "damage")
            self._deck = [card for card in self._deck if not card.startswith("damage")]

    async def _replace(self, fault: Fault, number: int, error: Offline) -> None:
        """A peer whose promises may be lost refuses to start; a new one replaces it."""
        if not any(words in str(error) for words in _UNFIT):
            raise error
        await asyncio.to_thread(self.testbed.remove, number)
        heir = await asyncio.to_thread(self.testbed.add)
        fault.note = f"unfit to vote: removed, and peer {heir} joined"

    async def _emptied(self, fault: Fault) -> bool:
        """A peer with an emptied folder starts under its old number: it must be refused. Then it is replaced."""
        number = self._any()
        fault.what = f"folder of peer {number} emptied"
        await asyncio.to_thread(self.testbed.empty, number)
        fault.note = await asyncio.to_thread(self.testbed.refused, number)
        if fault.note:
            await asyncio.to_thread(self.testbed.cluster.kill, number)
            await asyncio.to_thread(self.testbed.remove, number)
            await asyncio.to_thread(self.testbed.add)
        else:
            self.stuck = f"peer {number} was accepted under its old number with an emptied folder"
        return True

    async def _wiped(self, fault: Fault) -> bool:
        """A founder that stays down is the only one that remembers. The others must wait for it, and then be what they
        were when their folders are back."""
        testbed, founders = self.testbed, list(self.testbed.cluster.founders)
        if testbed.members != set(founders):
            return False
        self._random.shuffle(founders)
        wiped = sorted(founders[: len(founders) // 2 + 1])
        fault.what = f"folders of founders {', '.join(map(str, wiped))} away, and the others down"
        for number in founders:
            await asyncio.to_thread(testbed.cluster.stop, number)
        await asyncio.to_thread(testbed.start_wiped, wiped)
        try:
            began = await asyncio.to_thread(testbed.founded, wiped)
        finally:
            await asyncio.to_thread(testbed.stop_wiped, wiped)
        for number in founders:
            await asyncio.to_thread(testbed.cluster.restart, number, ready=False)
        if began:
            self.stuck = f"{fault.what}: {began}"
        return True

    # ------------------------------------------------------------------ clients

    async def _expire(self, fault: Fault) -> bool:
        wide = [lane for lane in self._lanes if lane[1] > 0]
        if not wide:
            return False
        self._emphasis.deadlines = True
        queue, index = self._random.choice(wide)
        await asyncio.sleep(self._random.uniform(2.0, 4.0))
        number = await asyncio.to_thread(self.testbed.coordinator, queue, index)
        if number:
            await self._kill(fault, number, f"coordinator of {queue}/{index}, ")
        fault.what = f"deadlines of transactions pass, {fault.what if number else 'no coordinator killed'}"
        await asyncio.sleep(2.0)
        return True

    async def _slow_readers(self, fault: Fault) -> bool:
        number = self._any()
        queues = sorted({queue for queue, _ in self._lanes})
        if not queues:
            return False
        fault.what = f"slow readers at peer {number}"
        got = await read_slowly(self.testbed, number, queues=queues, seconds=self._random.uniform(2.0, 6.0))
        fault.note = f"they read {got:,} bytes; the peer has {self.testbed.cluster.rss_bytes(number) >> 20} MiB"
        return True

    async def _many_lanes(self, fault: Fault) -> bool:
        count = max(BRIEF_QUEUES[0], int(BRIEF_QUEUES[1] * self._share))
        fault.what = f"{count} queues created and deleted"
        wrong = await create_and_delete(self.testbed, count=count, rng=self._random)
        if wrong:
            self.stuck = f"after {fault.what}: {wrong}"
        return True

    async def _late(self, fault: Fault) -> bool:
        """In a short campaign only if it was asked for by itself."""
        if not self._lanes or (self._share < 1 and len(self._kinds) > 1):
            return False
        queue, index = self._lanes[0]
        fault.what = f"a write to {queue}/{index} repeated after the lane forgot it"
        fault.note = await repeat_late(self.testbed, self._history, queue=queue, lane=index)
        return True

    # ------------------------------------------------------------------ members

    async def _add(self, fault: Fault) -> bool:
        if len(self.testbed.members) >= self._peers_wanted + MEMBERS_MAX_MORE:
            return False
        number = await asyncio.to_thread(self.testbed.add)
        fault.what = f"peer {number} joined"
        return True

    async def _remove(self, fault: Fault) -> bool:
        if len(self.testbed.members) <= self._peers_wanted:
            if "add" not in self._kinds:
                return False
            await asyncio.to_thread(self.testbed.add)
        number = self._any()
        fault.what = f"peer {number} removed"
        await asyncio.to_thread(self.testbed.remove, number)
        return True


def both(pairs: Iterable[Pair]) -> list[Pair]:
    """Both directions of each pair."""
    return [pair for a, b in pairs for pair in ((a, b), (b, a))]
