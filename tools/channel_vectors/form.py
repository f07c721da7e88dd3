"""The format of the vectors' files, and the execution of one step by the Python core."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Bounds, Ended, Event, Messages, Pending
from avow.channel.protocol.frames import END, Buffer, End, EndCode, Hello, end_bytes, read_packet
from avow.errors import AvowError

Repeated: TypeAlias = str | list[tuple[str, int]]  # hex, or pieces of it, each with a count
FOLDER: Final = Path(__file__).parents[2] / "tests/vectors/channel"
_RUN_SIZE_BYTES: Final = 64  # longer runs of one byte are written with a count
_SHOWN_SIZE_MAX: Final = 1_600  # hex digits of one packet or value
_SHOWN_COUNT_MAX: Final = 32  # values of one event
_TAKES_MAX: Final = 10_000
_OWN_WORDS: Final = (EndCode.IMPOSSIBLE, EndCode.PROTOCOL, EndCode.CAP_EXCEEDED)


class Options(Struct, frozen=True, omit_defaults=True):
    """The options of an end."""

    channel: str
    token: str
    initiator: bool
    bounds: dict[str, int] = {}
    window_s: int = 0
    last_commit: int = 0

    def core(self) -> Core:
        return Core(
            channel=bytes.fromhex(self.channel),
            token=bytes.fromhex(self.token),
            initiator=self.initiator,
            bounds=Bounds(**self.bounds),
            window_s=self.window_s,
            last_commit=self.last_commit,
        )


class Again(Struct, frozen=True):
    """A message for `resend`."""

    value: str
    commit: int


class Outcome(Struct, frozen=True, omit_defaults=True):
    """`gives`: the call's result; `raises`: the code of its error; `state`: the statistics that changed."""

    gives: int | None = None
    raises: str = ""
    events: list[dict[str, Any]] = []
    packets: list[Any] = []
    state: dict[str, int | str] = {}


class Step(Struct, frozen=True, omit_defaults=True):
    """One call. `times`: how often; `take`: packets to take after it, -1 is all; `size_bytes`: their maximum size."""

    end: str
    do: str
    value: Repeated = ""
    times: int = 1
    id: int = 0
    code: str = ""
    name: str = ""
    text: str = ""
    pending: list[Again] = []
    generation: int = 0
    packet: Repeated = ""
    take: int = -1
    size_bytes: int = 65_536
    expect: Outcome = Outcome()


class Vector(Struct, frozen=True):
    name: str
    ends: dict[str, Options]
    steps: list[Step]


# ---------------------------------------------------------------------- bytes as text


def repeated(data: Buffer) -> Repeated:
    pieces: list[tuple[str, int]] = []
    at, raw = 0, bytes(data)
    for run in re.finditer(rb"(.)\1{%d,}+" % (_RUN_SIZE_BYTES - 1), raw, re.DOTALL):
        if run.start() > at:
            pieces.append((raw[at : run.start()].hex(), 1))
        pieces.append((raw[run.start() : run.start() + 1].hex(), run.end() - run.start()))
        at = run.end()
    if not pieces:
        return raw.hex()
    return [*pieces, (raw[at:].hex(), 1)] if at < len(raw) else pieces


def spelled(text: Repeated) -> bytes:
    if isinstance(text, str):
        return bytes.fromhex(text)
    return b"".join(bytes.fromhex(piece) * times for piece, times in text)


def _shown(data: Buffer) -> Any:
    text = repeated(data)
    if sum(len(piece) for piece, _ in ([(text, 1)] if isinstance(text, str) else text)) <= _SHOWN_SIZE_MAX:
        return text
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def _shown_values(values: Sequence[Buffer]) -> Any:
    """Many values are written as a count and the SHA-256 over the size (8 hex digits) and bytes of each."""
    if len(values) <= _SHOWN_COUNT_MAX:
        return [_shown(value) for value in values]
    digest = sha256()
    for value in values:
        digest.update(b"%08x" % len(value) + value)
    return {"count": len(values), "sha256": digest.hexdigest()}


# ---------------------------------------------------------------------- one step


class Performed(Struct, frozen=True):
    """The result of a step, and its packets as bytes."""

    outcome: Outcome
    packets: list[bytes]


def perform(core: Core, step: Step, before: dict[str, int | str]) -> Performed:
    """Execute a step. `before` are the end's statistics after the previous step."""
    gives: int | None = None
    raises = ""
    try:
        for _ in range(step.times):
            gives = _CALLS[step.do](core, step)
    except AvowError as error:
        raises = error.code
    events = [_told(event) for event in core.take_events()]
    packets = list(_packets(core, step))
    state = {name: figure for name, figure in core.statistics().items() if before.get(name) != figure}
    shown = [_shown(_without_own_words(packet)) for packet in packets]
    return Performed(Outcome(None if raises else gives, raises, events, shown, state), packets)


def _packets(core: Core, step: Step) -> Iterator[bytes]:
    for _ in range(step.take if step.take >= 0 else _TAKES_MAX):
        packet = b"".join(core.packet(step.size_bytes))
        if not packet:
            return
        yield packet


def _greeted(core: Core, step: Step) -> int:
    (hello,) = read_packet(spelled(step.packet))
    assert type(hello) is Hello
    return core.greeted(hello)


def _resend(core: Core, step: Step) -> None:
    core.resend([Pending(0, bytes.fromhex(one.value), "unknown", one.commit) for one in step.pending])


_CALLS: Final[dict[str, Callable[[Core, Step], int | None]]] = {
    "send": lambda core, step: core.send(spelled(step.value)),
    "commit": lambda core, _: core.commit(),
    "resend": _resend,
    "ack_commit": lambda core, step: core.ack_commit(step.id),
    "end": lambda core, step: core.end(EndCode[step.code], name=step.name, text=step.text),
    "socket": lambda core, _: core.socket(),
    "greeted": _greeted,
    "received": lambda core, step: core.received(step.generation, spelled(step.packet)),
    "lost": lambda core, step: core.lost(step.generation),
}


def _told(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": type(event).__name__}
    if type(event) is Messages:
        return fields | {"first": event.first, "values": _shown_values(event.values)}
    if type(event) is not Ended:
        fields.update(msgspec.to_builtins(event))
        return fields
    pending = [
        {"number": one.number, "value": _shown(one.value), "fate": one.fate, "commit": one.commit}
        for one in event.pending
    ]
    text = None if event.code in _OWN_WORDS and not event.remote else event.text
    last = {"code": event.code.name, "name": event.name, "text": text}
    return fields | last | {"remote": event.remote, "pending": pending}


def _without_own_words(packet: bytes) -> bytes:
    if packet[0] != END:
        return packet
    (end,) = read_packet(packet)
    assert type(end) is End
    return end_bytes(End(end.code, end.acked, end.received_to, end.name)) if end.code in _OWN_WORDS else packet


# ---------------------------------------------------------------------- whole vectors


def differences(vector: Vector) -> list[str]:
    """The steps at which the Python core differs from the vector."""
    cores = {name: options.core() for name, options in vector.ends.items()}
    before: dict[str, dict[str, int | str]] = {name: {} for name in cores}
    found = []
    for number, step in enumerate(vector.steps, 1):
        outcome = perform(cores[step.end], step, before[step.end]).outcome
        before[step.end] = cores[step.end].statistics()
        expected, known = map(msgspec.json.encode, (step.expect, outcome))
        if known != expected:
            found.append(f"{vector.name}, step {number} ({step.do}): expected {expected!r}, found {known!r}")
    return found


def stored() -> dict[str, list[Vector]]:
    """The vectors by file."""
    return {one.name: msgspec.json.decode(one.read_bytes(), type=list[Vector]) for one in sorted(FOLDER.glob("*.json"))}


def text(vectors: Sequence[Vector]) -> str:
    """The text of a file, with one step per line."""
    return "[\n" + ",\n".join(_lines(vector) for vector in vectors) + "\n]\n"


def _lines(vector: Vector) -> str:
    encode = msgspec.json.encode
    steps = ",\n    ".join(encode(step).decode() for step in vector.steps)
    head = f'  {{"name": {encode(vector.name).decode()},\n   "ends": {encode(vector.ends).decode()},\n'
    return f'{head}   "steps": [\n    {steps}\n   ]}}'
