"""Seeded random walks of two ends over sockets that are cut anywhere, for cases that no script covers."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from tools.channel_vectors.form import Vector
from tools.channel_vectors.stage import Actor, Script

SEEDS: Final = range(1, 17)
MOVES: Final = 60
_WEIGHTS: Final = {"send": 6, "commit": 3, "ack": 4, "deliver": 12, "cut": 1, "dial": 1, "old": 1, "half": 1}


class Walk:
    """The packets in flight on the newest socket, in each direction, and those of earlier sockets."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.script = Script(f"walk of seed {seed}")
        bounds = [{"pending_count": self.rng.choice((2, 3, 5, 9))}, {"pending_bytes": self.rng.choice((100, 400))}]
        self.rng.shuffle(bounds)
        self.ends = dict(zip("ab", self.script.ends({"bounds": bounds[0]}, {"bounds": bounds[1]}), strict=True))
        self.in_flight: dict[str, deque[tuple[int, bytes]]] = {"a": deque(), "b": deque()}  # to whom, on which socket
        self.late: list[tuple[str, int, bytes]] = []
        self.hello: bytes | None = None
        self.owed: dict[str, list[int]] = {"a": [], "b": []}

    def run(self) -> Vector:
        for _ in range(MOVES):
            move = self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            getattr(self, move)(self.rng.choice("ab"))
        if self.rng.random() < 0.5:
            self.leave(self.rng.choice("ab"))
        return self.script.vector()

    def given(self, by: str, packets: list[bytes]) -> None:
        generation = self.ends[by].core.generation
        self.in_flight["b" if by == "a" else "a"].extend((generation, packet) for packet in packets)

    def send(self, name: str) -> None:
        self.given(name, self.ends[name].send(bytes(self.rng.choice((0, 1, 7, 60))), times=self.rng.choice((1, 1, 3))))

    def commit(self, name: str) -> None:
        self.given(name, self.ends[name].commit())

    def ack(self, name: str) -> None:
        end = self.ends[name]
        known = [one for one in self.owed[name] if one > end.core.incoming.acked]
        if known:
            self.given(name, end.ack(self.rng.choice(known)))

    def dial(self, _: str) -> None:
        for name, packets in self.in_flight.items():
            self.late += [(name, generation, packet) for generation, packet in packets]
            packets.clear()
        (self.hello,) = self.ends["a"].socket()

    def cut(self, _: str) -> None:
        for name, end in self.ends.items():
            end.lost()
            self.in_flight[name].clear()
        self.hello = None
        if self.rng.random() < 0.7:
            self.dial("a")

    def half(self, name: str) -> None:
        """One end notices that its socket is closed; packets of the other end are lost."""
        self.ends[name].lost()
        self.in_flight[name].clear()

    def deliver(self, name: str) -> None:
        if self.hello is not None:
            hello, self.hello = self.hello, None
            self.given("b", self.ends["b"].greeted(hello))
            return
        if not self.in_flight[name]:
            return
        generation, packet = self.in_flight[name].popleft()
        end = self.ends[name]
        self.given(name, end.received(packet, generation=generation))
        self._remember(name, end)

    def old(self, _: str) -> None:
        """A late packet of a closed socket arrives."""
        if self.late:
            name, generation, packet = self.late.pop(self.rng.randrange(len(self.late)))
            if generation < self.ends[name].core.generation:
                self.ends[name].received(packet, generation=generation)

    def leave(self, name: str) -> None:
        self.given(name, self.ends[name].finish(self.rng.choice(("CLOSED", "ABORTED")), text="leaves"))
        for other in "ab":
            while self.in_flight[other]:
                self.deliver(other)

    def _remember(self, name: str, end: Actor) -> None:
        newest = end.core.incoming.commits_received_to
        if newest and newest not in self.owed[name]:
            self.owed[name].append(newest)


def walked() -> list[Vector]:
    return [Walk(seed).run() for seed in SEEDS]
