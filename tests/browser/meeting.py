"""Two cores in two languages over sockets that are cut anywhere: every message arrives once, as it was sent.

The browser's core runs in Node at the other side of a pipe and is told one step at a time; Python's does the same steps
here. A seed decides every move. At the end a socket holds, and then everything must have arrived and be acknowledged.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
from tests.browser.far import FOLDER
from tools.channel_vectors.form import Options, Step, perform
from tools.channel_vectors.stage import CHANNEL, TOKEN

MOVES = 70
WEIGHTS = {"send": 8, "commit": 3, "ack": 4, "deliver": 14, "cut": 2, "dial": 1, "late": 1}


class PythonEnd:
    def __init__(self) -> None:
        self.state: dict[str, int | str] = {}

    async def make(self, options: Options) -> None:
        self._core = options.core()
        self.state = self._core.statistics()

    async def step(self, do: str, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
        performed = perform(self._core, Step("", do, **fields), self.state)
        self.state = self._core.statistics()
        return msgspec.to_builtins(performed.outcome), performed.packets


class BrowserEnd:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.state: dict[str, int | str] = {}

    async def make(self, options: Options) -> None:
        await self._ask({"options": msgspec.to_builtins(options)})
        self.state = {"generation": 0, "link": "down"}

    async def step(self, do: str, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
        answer = await self._ask(msgspec.to_builtins(Step("", do, **fields)))
        self.state = answer["now"]
        return answer["outcome"], [bytes.fromhex(packet) for packet in answer["packets"]]

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the core in Node fell over"
        answer: dict[str, Any] = json.loads(line)
        return answer


class Meeting:
    def __init__(self, seed: int, dialer: PythonEnd | BrowserEnd, other: PythonEnd | BrowserEnd) -> None:
        self.rng = Random(seed)
        self.ends = {"a": dialer, "b": other}
        self.sent: dict[str, list[str]] = {"a": [], "b": []}  # by who sent it
        self.delivered: dict[str, list[str]] = {"a": [], "b": []}  # by who got it
        self.owed: dict[str, list[int]] = {"a": [], "b": []}
        self.under_way: dict[str, deque[tuple[int, bytes]]] = {"a": deque(), "b": deque()}  # to whom, on which socket
        self.old: list[tuple[str, int, bytes]] = []
        self.hello: bytes | None = None
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        for name, end in self.ends.items():
            bounds = self.rng.choice(({"pending_count": self.rng.randrange(1, 12)}, {"pending_bytes": 300}))
            await end.make(Options(CHANNEL.hex(), TOKEN.hex(), name == "a", bounds))
        for _ in range(MOVES):
            move = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            await getattr(self, move)(self.rng.choice("ab"))
        await self.settle()

    async def step(self, name: str, do: str, **fields: Any) -> dict[str, Any]:
        outcome, packets = await self.ends[name].step(do, **fields)
        generation = int(self.ends[name].state["generation"])
        self.under_way[_other(name)].extend((generation, packet) for packet in packets)
        for event in outcome.get("events", ()):
            if event["type"] == "Messages":
                assert event["first"] == len(self.delivered[name]) + 1
                self.delivered[name] += event["values"]
            elif event["type"] == "CommitDelivered":
                self.owed[name].append(event["id"])
            assert event["type"] != "Ended", event
        got, sent_values = self.delivered[name], self.sent[_other(name)]
        assert got == sent_values[: len(got)]
        return outcome

    async def send(self, name: str) -> None:
        value = self.rng.randbytes(self.rng.choice((1, 4, 40))).hex()
        self.sent[name].append(value)
        outcome = await self.step(name, "send", value=value)
        if outcome.get("raises"):
            assert outcome["raises"] == "BUSY"
            self.sent[name].pop()
        self.counts["sent"] += not outcome.get("raises")

    async def commit(self, name: str) -> None:
        await self.step(name, "commit")

    async def ack(self, name: str) -> None:
        if self.owed[name]:
            at = self.rng.randrange(len(self.owed[name]))
            await self.step(name, "ack_commit", id=self.owed[name][at])
            del self.owed[name][: at + 1]

    async def deliver(self, name: str) -> None:
        if self.hello is not None:
            hello, self.hello = self.hello, None
            await self.step("b", "greeted", packet=hello.hex())
        elif self.under_way[name]:
            generation, packet = self.under_way[name].popleft()
            await self.step(name, "received", packet=packet.hex(), generation=generation)

    async def dial(self, _: str) -> None:
        for name, under_way in self.under_way.items():
            self.old += [(name, generation, packet) for generation, packet in under_way]
            under_way.clear()
        await self.step("a", "socket")
        self.hello = self.under_way["b"].popleft()[1]

    async def cut(self, _: str) -> None:
        self.counts["cuts"] += 1
        for name, end in self.ends.items():
            await self.step(name, "lost", generation=end.state["generation"])
            self.under_way[name].clear()
        self.hello = None
        if self.rng.random() < 0.8:
            await self.dial("a")

    async def late(self, _: str) -> None:
        """A packet of an older socket is ignored."""
        while self.old:
            name, generation, packet = self.old.pop()
            if generation < int(self.ends[name].state["generation"]):
                self.counts["late"] += 1
                outcome = await self.step(name, "received", packet=packet.hex(), generation=generation)
                assert "events" not in outcome or not outcome["events"]
                return

    async def settle(self) -> None:
        await self.cut("a")
        await self.dial("a")
        for name in "ab":
            await self.commit(name)
        for _ in range(200):
            await self.deliver("b")
            await self.deliver("a")
            for name in "ab":
                while self.owed[name]:
                    await self.ack(name)
        for name, end in self.ends.items():
            assert self.delivered[_other(name)] == self.sent[name]
            assert end.state["pending"] == 0
            assert end.state["acked"] == end.state["commits"]
            assert (end.state["sender"], end.state["receiver"]) == ("flowing", "clear")


def _other(name: str) -> str:
    return "b" if name == "a" else "a"


async def meet(*, seeds: Iterable[int], dials: str) -> Counter[str]:
    process = await asyncio.create_subprocess_exec(
        "node",
        str(FOLDER / "core.mjs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    counts: Counter[str] = Counter()
    try:
        for seed in seeds:
            python, other = PythonEnd(), BrowserEnd(process)
            meeting = Meeting(seed, *((python, other) if dials == "python" else (other, python)))
            try:
                await meeting.run()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {dials} dials: {error}") from error
            counts += meeting.counts
    finally:
        process.kill()
        await process.wait()
    return counts
