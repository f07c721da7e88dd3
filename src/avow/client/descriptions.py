"""Queues, lanes and subscribers as the HTTP API describes them, and the paths of the API.

JSON is decoded directly into these structs. Fields that a newer peer adds are ignored; fields that an older peer lacks
get a neutral default.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from avow.client.outcomes import reader_of

Strategy: TypeAlias = Literal["two-phase", "pub-sub"]
Level: TypeAlias = Literal["local", "at_least", "linearizable"]


class Retention(Struct, frozen=True, omit_defaults=True):
    """Messages are removed when they are older, when the lane is larger, or when every subscriber has passed them."""

    age_s: float | None = None
    size_bytes: int | None = None
    passed: bool = False


class LaneInfo(Struct, frozen=True):
    lane: int
    number: int = 0
    end: int = 0
    trimmed_to: int = 0
    coordinator: int | None = None
    voters: tuple[int, ...] = ()
    owner: int | None = None
    ended: bool = False


class QueueInfo(Struct, frozen=True):
    """`open_lane`: in pub-sub, the lane that the answering peer writes to."""

    name: str
    strategy: str = "two-phase"
    peers: tuple[int, ...] = ()
    retention: Retention = Retention()
    open_lane: int | None = None
    lanes: tuple[LaneInfo, ...] = ()

    @property
    def pubsub(self) -> bool:
        return self.strategy == "pub-sub"


class SubscriberInfo(Struct, frozen=True):
    name: str
    versions: dict[int, int] = {}
    hold: bool = False


class Queues(Struct, frozen=True):
    queues: tuple[QueueInfo, ...] = ()


class Subscribers(Struct, frozen=True):
    subscribers: tuple[SubscriberInfo, ...] = ()


read_queue: Final = reader_of(QueueInfo)
read_queues: Final = reader_of(Queues)
read_subscriber: Final = reader_of(SubscriberInfo)
read_subscribers: Final = reader_of(Subscribers)


def path_of(*names: str | int) -> bytes:
    """`/v1/...` with every name escaped."""
    return "/v1/{}".format("/".join(quote(str(name), safe="") for name in names)).encode("ascii")


def queue_path(name: str, *rest: str | int) -> bytes:
    return path_of("queues", name, *rest)
