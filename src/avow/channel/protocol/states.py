"""State tables of one end of a channel. The core uses them for its transitions; the diagrams in the docs show them.

An end consists of three state machines. *Link*: is there a socket, and has the other end reported its position?
*Sender*: may the application send? *Receiver*: does this end owe an acknowledgement? They interact in few places, all
in `core`: losing a socket changes only the link; the end of a channel ends all three.

A transition that is not in a table is a defect of this code and raises KeyError. Protocol violations by the other end
are detected earlier, from the numbers in its frames, and lead to the event "end".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar


class Link(StrEnum):
    DOWN = "down"  # no socket: messages and acknowledgements wait for the next one
    GREETING = "greeting"  # a socket without the other end's Hello yet; only Hello is sent
    UP = "up"
    ENDED = "ended"


class Sender(StrEnum):
    FLOWING = "flowing"
    SUSPENDED = "suspended"  # the limit is reached, and an unacknowledged commit covers everything
    ENDED = "ended"


class Receiver(StrEnum):
    CLEAR = "clear"  # every commit that was delivered has been acknowledged
    OWING = "owing"  # delaying this acknowledgement is how a receiver applies back-pressure
    ENDED = "ended"


State = TypeVar("State", Link, Sender, Receiver)
Table: TypeAlias = Mapping[tuple[State, str], State]

LINK: Final[Table[Link]] = {
    (Link.DOWN, "socket"): Link.GREETING,
    (Link.GREETING, "socket"): Link.GREETING,  # the newer socket fences the older
    (Link.UP, "socket"): Link.GREETING,
    (Link.GREETING, "hello"): Link.UP,
    (Link.GREETING, "socket lost"): Link.DOWN,
    (Link.UP, "socket lost"): Link.DOWN,
    (Link.DOWN, "end"): Link.ENDED,
    (Link.GREETING, "end"): Link.ENDED,
    (Link.UP, "end"): Link.ENDED,
}

SENDER: Final[Table[Sender]] = {
    (Sender.FLOWING, "send"): Sender.FLOWING,
    (Sender.FLOWING, "send to the limit"): Sender.SUSPENDED,  # issues the commit itself
    (Sender.FLOWING, "commit"): Sender.FLOWING,
    (Sender.FLOWING, "commit at the limit"): Sender.SUSPENDED,
    (Sender.FLOWING, "ack"): Sender.FLOWING,
    (Sender.SUSPENDED, "commit"): Sender.SUSPENDED,  # commits are never blocked
    (Sender.SUSPENDED, "ack"): Sender.SUSPENDED,
    (Sender.SUSPENDED, "ack to the low mark"): Sender.FLOWING,
    (Sender.FLOWING, "end"): Sender.ENDED,
    (Sender.SUSPENDED, "end"): Sender.ENDED,
}

RECEIVER: Final[Table[Receiver]] = {
    (Receiver.CLEAR, "data"): Receiver.CLEAR,
    (Receiver.CLEAR, "commit"): Receiver.OWING,
    (Receiver.OWING, "data"): Receiver.OWING,  # delivered as usual while an ack is owed
    (Receiver.OWING, "commit"): Receiver.OWING,  # acknowledging the newer one acknowledges the older
    (Receiver.OWING, "ack of an older commit"): Receiver.OWING,
    (Receiver.OWING, "ack of the newest commit"): Receiver.CLEAR,
    (Receiver.CLEAR, "end"): Receiver.ENDED,
    (Receiver.OWING, "end"): Receiver.ENDED,
}

MACHINES: Final[Mapping[str, Mapping[Any, StrEnum]]] = {"link": LINK, "sender": SENDER, "receiver": RECEIVER}


def diagram(table: Mapping[Any, StrEnum]) -> str:
    """A table as a Mermaid state diagram; transitions between the same two states share an arrow."""
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (before, event), after in table.items():
        arrows.setdefault((before, after), []).append(event)
    first = next(iter(table))[0]
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join([*lines, "    ended --> [*]", ""])
