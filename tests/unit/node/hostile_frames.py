"""Frames that a peer with a mistake, or one that was taken over, may send: well-formed, and wrong in every other way.

Everything drawn goes through the frame's encoding, so it is what can arrive from a link. Numbers are drawn near those
that the receiving node holds, where a check that is off by one would show, and from the ends of their range.
"""

from __future__ import annotations

from random import Random
from typing import Any, get_args

from msgspec.structs import fields, replace
from tests.unit.node.node_cluster import data

from avow.ids import ballot_of
from avow.node.node import Node
from avow.queue.commands import METADATA_COMMANDS, QUEUE_COMMANDS, LaneEndCommand, QueueCommand, encode
from avow.replication.membership import Members, encode_members
from avow.wire import frames
from avow.wire.merge import merge_sections
from avow.wire.messages import Entry, Kind, Message, Snapshot

CLASSES = get_args(Message)
BALLOTS = frozenset({"ballot", "promised", "stamped", "origin"})
UNSIGNED = BALLOTS | {"request", "round"}
NUMBERS = (0, 1, 2, 3, 7, 255, 1 << 16, 1 << 31, (1 << 31) + 1, 1 << 32, 1 << 62, (1 << 63) - 1)
COMMANDS = frozenset({*QUEUE_COMMANDS, *METADATA_COMMANDS})


class HostileFrames:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._node: Node

    def draw(self, node: Node, *, source: int, classes: tuple[type[Message], ...] = CLASSES) -> tuple[int, Message]:
        """Route and message as the node's link decodes them."""
        self._node, random = node, self.random
        route = self._route()
        wanted = random.choice(classes)
        values = {field.name: self._field(field.name, field.type, route, source) for field in fields(wanted)}
        message = wanted(**values)
        if random.random() < 0.7 and hasattr(message, "entries") and hasattr(message, "after"):
            message = replace(message, entries=_following(message.after, message.entries))
        return self._through_a_link(route, message)

    def bend(self, node: Node, *, source: int, route: int, message: Message) -> tuple[int, Message]:
        """A true message with one field changed, as the node's link decodes it."""
        self._node, random = node, self.random
        field = random.choice(fields(type(message)))
        bent = replace(message, **{field.name: self._field(field.name, field.type, route, source)})
        return self._through_a_link(self._route() if random.random() < 0.1 else route, bent)

    def _through_a_link(self, route: int, message: Message) -> tuple[int, Message]:
        decoded_route, decoded = frames.decode(b"".join(bytes(piece) for piece in frames.encode(route, message)))
        assert not isinstance(decoded, frames.Alive | frames.LinkRefused), "these are not for lanes"
        return decoded_route, decoded

    # ------------------------------------------------------------------ numbers

    def _route(self) -> int:
        node, random = self._node, self.random
        known = [0, *node.mux.components, *node.mux.components, *node.metadata.state.lanes.by_number]
        return random.choice([*known, random.choice(NUMBERS) % (1 << 32), 3])

    def _ballot(self, route: int, source: int) -> int:
        node, random = self._node, self.random
        lane: Any = node.mux.components.get(route)
        known = [
            0,
            1,
            ballot_of(random.choice((0, 1, 2, 9, 1 << 40, (1 << 48) - 1)), random.choice((source, node.me, 0))),
        ]
        if hasattr(lane, "core") and hasattr(lane.core, "promised"):
            core = lane.core
            known += [core.promised, core.promised, core.state.stamped, core.log.origin(core.log.end)]
            known += [ballot_of((core.promised >> 16) + 1, source), core.leadership.ballot]
        return max(0, random.choice(known))

    def _number(self, route: int) -> int:
        node, random = self._node, self.random
        lane: Any = node.mux.components.get(route)
        known = [random.choice(NUMBERS), -random.choice(NUMBERS) - 1]
        if hasattr(lane, "core") and hasattr(lane.core, "log"):
            core = lane.core
            known += [core.log.end, core.log.base, core.committed, core.log.end + 1, core.log.end - 1]
        elif lane is not None:
            for held in lane.core.lanes.by_number.values():
                known += [held.end, held.cursor, held.base, held.end + 1]
        return random.choice(known)

    def _lane_number(self) -> int:
        known = [*self._node.metadata.state.lanes.by_number, *self._node.lanes]
        return self.random.choice([*known, *known, self.random.choice(NUMBERS), -self.random.choice(NUMBERS)])

    def _field(self, name: str, kind: Any, route: int, source: int) -> Any:
        random = self.random
        if kind is bool:
            return random.random() < 0.5
        if kind is str:
            return random.choice(("", "OFFLINE", "UNKNOWN", "NOT_EQUAL", "no such code", "\x00", "é" * 90))
        if kind is Entry:
            return self._entry(route, source, 0)
        if kind is Snapshot:
            return self._snapshot(route, source)
        if kind is int:
            if name in BALLOTS:
                return self._ballot(route, source)
            if name in UNSIGNED:
                return random.choice((0, 1, 2, 3, 4, 5, 1 << 62, (1 << 62) + 1, (1 << 62) + 5, (1 << 64) - 1))
            return self._lane_number() if name == "lane" else self._number(route)
        if name == "lanes":
            triples = random.choice((0, 1, 1, 3))
            return tuple((self._lane_number(), self._number(route), self._number(route)) for _ in range(triples))
        assert name == "entries", name
        first = max(0, self._number(route)) % (1 << 62)
        return tuple(self._entry(route, source, first + i) for i in range(random.choice((0, 1, 1, 2, 5))))

    # ------------------------------------------------------------------ entries

    def _entry(self, route: int, source: int, position: int) -> Entry:
        random = self.random
        kind = random.randrange(len(Kind.NAMES))
        return Entry(
            position=position,
            origin=self._ballot(route, source),
            kind=kind,
            count=random.choice((0, 1, 1, 2, 65_536)),
            write_id=random.choice((b"", b"", random.randbytes(16), bytes(16))),
            created_ms=random.choice((0, 1, 1 << 62, (1 << 64) - 1)),
            control=self._control(kind),
            batch=self._batch(),
        )

    def _control(self, kind: int) -> bytes:
        random = self.random
        members = Members(
            tuple(random.choices(range(70_000), k=random.choice((0, 1, 3)))), (2, 2, 3)[: random.choice((0, 1))]
        )
        return random.choice(
            (
                b"",
                b"\xc1",
                random.randbytes(20),
                encode_members(members),
                encode_members(Members((1, 2, 3), ())),
                encode(LaneEndCommand(9, 1 << 40, 1, 1 << 40)),
                encode(QueueCommand("delete", "orders")),
                b"\x92\x90\x90" if kind == Kind.MEMBERS else b"\x90",
            )
        )

    def _batch(self) -> bytes:
        random = self.random
        good = bytes(data(b"value", b"w" * 16).batch)
        bad = bytearray(good)
        bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
        merged = bytes(merge_sections([(b"a" * 16, 1, good), (b"b" * 16, 1, good)]))
        cut = merged[: random.randrange(len(merged))]
        return random.choice((b"", good, good, bytes(bad), random.randbytes(40), merged, cut))

    def _snapshot(self, route: int, source: int) -> Snapshot:
        random = self.random
        lane: Any = self._node.mux.components.get(route)
        states = [b"", random.randbytes(60)]
        if hasattr(lane, "machine"):
            good = lane.machine.snapshot()
            bad = bytearray(good)
            bad[random.randrange(len(bad))] ^= 1
            states += [good, good, bytes(bad), self._node.metadata.machine.snapshot()]
        voters = random.choice(((), (1, 2, 3), (1, 1), (0,), (70_000,), tuple(range(1, 41))))
        learners = random.choice(((), (), (4,), (1,)))
        position = random.choice((self._number(route), lane.applied if hasattr(lane, "applied") else 5))
        return Snapshot(position, self._ballot(route, source), voters, learners, random.choice(states))


def _following(after: int, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The same, at the positions that the message says they have."""
    if not 0 <= after < 1 << 62:
        return entries
    return tuple(replace(entry, position=after + number) for number, entry in enumerate(entries, 1))
