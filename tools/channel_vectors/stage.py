"""Records vectors: scripts call ends by name, and every call is recorded with its result.

    def a_commit_on_an_idle_channel_is_acknowledged(script: Script) -> None:
        a, b = script.pair()
        converse(a, b, a.commit())

The script's name is the vector's name. The script delivers packets; `converse` delivers them until there are none left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from avow.channel.protocol.frames import Buffer
from tools.channel_vectors.form import Again, Options, Step, Vector, perform, repeated

CHANNEL: Final = bytes(range(16))
TOKEN: Final = bytes(range(16, 32))
_TURNS_MAX: Final = 1_000


class Script:
    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[Step] = []
        self._ends: dict[str, Options] = {}

    def end(
        self,
        name: str,
        *,
        initiator: bool,
        bounds: dict[str, int] | None = None,
        window_s: int = 0,
        last_commit: int = 0,
    ) -> Actor:
        options = Options(CHANNEL.hex(), TOKEN.hex(), initiator, bounds or {}, window_s, last_commit)
        self._ends[name] = options
        return Actor(self, name, options)

    def ends(self, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> tuple[Actor, Actor]:
        """An initiator and an acceptor with these options."""
        return self.end("a", initiator=True, **(a or {})), self.end("b", initiator=False, **(b or {}))

    def pair(self, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> tuple[Actor, Actor]:
        """A connected pair of ends."""
        ends = self.ends(a, b)
        connect(*ends)
        return ends

    def vector(self) -> Vector:
        return Vector(self.name, self._ends, self.steps)


class Actor:
    """One end. Each method is one step and returns the packets taken after it."""

    def __init__(self, script: Script, name: str, options: Options) -> None:
        self._script, self.name = script, name
        self.core = options.core()
        self._before: dict[str, int | str] = {}

    def _step(self, do: str, **fields: Any) -> list[bytes]:
        step = Step(self.name, do, **fields)
        performed = perform(self.core, step, self._before)
        self._before = self.core.statistics()
        fields["expect"] = performed.outcome
        self._script.steps.append(Step(self.name, do, **fields))
        return performed.packets

    def send(self, value: Buffer = b"x", **more: int) -> list[bytes]:
        return self._step("send", value=repeated(value), **more)

    def commit(self, **more: int) -> list[bytes]:
        return self._step("commit", **more)

    def resend(self, *messages: tuple[bytes, int]) -> list[bytes]:
        return self._step("resend", pending=[Again(value.hex(), commit) for value, commit in messages])

    def ack(self, commit_id: int, **more: int) -> list[bytes]:
        return self._step("ack_commit", id=commit_id, **more)

    def finish(self, code: str, *, name: str = "", text: str = "", take: int = -1) -> list[bytes]:
        return self._step("end", code=code, name=name, text=text, take=take)

    def socket(self, *, take: int = -1) -> list[bytes]:
        return self._step("socket", take=take)

    def greeted(self, packet: bytes, **more: int) -> list[bytes]:
        return self._step("greeted", packet=repeated(packet), **more)

    def received(self, *packets: bytes, generation: int = 0, **more: int) -> list[bytes]:
        """Each packet is a step."""
        given = []
        for packet in packets:
            at = generation or self.core.generation
            given += self._step("received", packet=repeated(packet), generation=at, **more)
        return given

    def lost(self, *, generation: int = 0) -> list[bytes]:
        return self._step("lost", generation=generation or self.core.generation)


def converse(a: Actor, b: Actor, from_a: Sequence[bytes] = (), from_b: Sequence[bytes] = ()) -> None:
    for _ in range(_TURNS_MAX):
        if not from_a and not from_b:
            return
        from_b = [*from_b, *b.received(*from_a)]
        from_a, from_b = a.received(*from_b), []
    raise AssertionError("two ends that never stop talking")


def connect(a: Actor, b: Actor) -> None:
    """Connect a new socket and exchange all packets."""
    (hello,) = a.socket()
    converse(a, b, from_b=b.greeted(hello))


def cut(a: Actor, b: Actor) -> None:
    a.lost()
    b.lost()


def vectors_of(scripts: Sequence[Callable[[Script], None]]) -> list[Vector]:
    made = []
    for play in scripts:
        script = Script(play.__name__.replace("_", " "))
        play(script)
        made.append(script.vector())
    return made
