"""Opening a channel: its parameters and rights are checked before there is a socket.

    role         needs           takes
    producer     write           format=records, or format=json with `producer`, tried, created_ms
    subscriber   read, write     subscriber, member, from, format=ranges or json; moving a cursor is a write
    reader       read            lane, after, from, format=ranges or json
    observer     read            nothing; pub-sub queues only

A parameter that the role does not use is refused, like an unknown one. The result is an `Opening`, with the function
that gives the channel its role when it has begun. Its `purpose` must be equal when a channel is resumed: the same
parameters, the same queue, the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import Struct, structs
from msgspec.json import Encoder

from avow.errors import InvalidRequest
from avow.server.channels.observer import Observer
from avow.server.channels.producer import JsonProducer, RecordsProducer
from avow.server.channels.reader import Reader
from avow.server.channels.subscriber import Subscriber
from avow.server.http.handlers_queues import check_name, check_not_internal

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.queue.records import Queue
    from avow.server.access import Right, Token
    from avow.server.channels.channels import ChannelCounters
    from avow.server.http.api import Api
    from avow.server.http.schemas import ChannelParameters
    from avow.server.process import Peer

RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "producer": ("write",),
    "subscriber": ("read", "write"),
    "reader": ("read",),
    "observer": ("read",),
}
_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "producer": frozenset({"format", "producer", "tried", "created_ms"}),
    "subscriber": frozenset({"format", "subscriber", "member", "from_"}),
    "reader": frozenset({"format", "lane", "after", "from_"}),
    "observer": frozenset(),
}
_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "producer": ("records", "json"),
    "subscriber": ("ranges", "json"),
    "reader": ("ranges", "json"),
}
_AFTER_LANES_MAX: Final = 4_096
_encode: Final = Encoder().encode


class Role(Protocol):
    """What a channel is used for. It has set the channel's hooks."""


Make: TypeAlias = Callable[["Peer", "Channel", "ChannelCounters"], Role]


class Opening(Struct, frozen=True):
    """`make` gives a channel its role when it has begun."""

    role: str
    purpose: str
    make: Make


def opening_of(api: Api, token: Token, asked: ChannelParameters) -> Opening:
    """Raises the error with which the request is to be answered."""
    for right in RIGHTS[asked.role]:
        token.check(right, asked.queue)
    if "write" in RIGHTS[asked.role]:
        check_not_internal(asked.queue)
    _check_parameters(asked)
    queue = api.queue(asked.queue)
    api.check_held(queue)
    purpose = _encode([token.name, structs.asdict(asked), queue.first_lane])
    return Opening(asked.role, purpose.decode(), _MAKES[asked.role](api, queue, asked))


def _check_parameters(asked: ChannelParameters) -> None:
    """Checks what the types cannot express."""
    role, takes = asked.role, _TAKES[asked.role]
    for field in structs.fields(asked):
        given = getattr(asked, field.name) != field.default
        if given and field.name not in takes and not field.required:
            raise InvalidRequest(
                f"`{field.encode_name}` is not a parameter of a {role}'s channel; the channel was not opened"
            )
    formats = _FORMATS.get(role, ())
    if asked.format is not None and asked.format not in formats:
        raise InvalidRequest(
            f"`format` of a {role} must be {' or '.join(formats)}, not {asked.format}; the channel was not opened"
        )


def _producer(_: Api, queue: Queue, asked: ChannelParameters) -> Make:
    named = asked.producer
    if asked.format != "json":
        if (named, asked.tried, asked.created_ms) != (None, None, None):
            raise InvalidRequest(
                "`producer`, `tried` and `created_ms` need format=json: records have their own write ids and ages; the "
                "channel was not opened"
            )
        return lambda peer, channel, counters: RecordsProducer(peer, channel, queue, counters)
    if named is None:
        raise InvalidRequest(
            "format=json needs `producer`, 32 hex digits, from which write ids are made; the channel was not opened"
        )
    return lambda peer, channel, counters: JsonProducer(
        peer,
        channel,
        queue,
        counters,
        producer=bytes.fromhex(named),
        tried=asked.tried,
        created_ms=asked.created_ms,
    )


def _subscriber(_: Api, queue: Queue, asked: ChannelParameters) -> Make:
    name = asked.subscriber
    if name is None:
        raise InvalidRequest("a subscriber's channel needs `subscriber`, its name; the channel was not opened")
    check_name("subscriber", name)
    if asked.member:
        check_name("member", asked.member)
    return lambda peer, channel, counters: Subscriber(
        peer,
        channel,
        queue,
        counters,
        subscriber=name,
        member=asked.member,
        from_end=asked.from_ == "end",
        json=asked.format == "json",
    )


def _reader(api: Api, queue: Queue, asked: ChannelParameters) -> Make:
    if asked.lane is not None:
        api.target(queue, asked.lane)
    after = _versions(asked.after or "")
    beyond = [lane for lane in after if queue.strategy == "two-phase" and lane >= queue.lanes]
    if beyond:
        raise InvalidRequest(f"queue {queue.name!r} has lanes 0 to {queue.lanes - 1}, not {beyond[0]}; see `after`")
    return lambda peer, channel, counters: Reader(
        peer,
        channel,
        queue,
        counters,
        lane=asked.lane,
        after=after,
        from_end=asked.from_ == "end",
        json=asked.format == "json",
    )


def _observer(_: Api, queue: Queue, asked: ChannelParameters) -> Make:  # noqa: ARG001
    if queue.strategy != "pub-sub":
        raise InvalidRequest(
            f"queue {queue.name!r} is two-phase, and only pub-sub queues have observers; the channel was not opened"
        )
    return lambda peer, channel, counters: Observer(peer, channel, queue, counters)


_MAKES: Final[Mapping[str, Callable[[Any, Any, Any], Make]]] = {
    "producer": _producer,
    "subscriber": _subscriber,
    "reader": _reader,
    "observer": _observer,
}


def _versions(text: str) -> dict[int, int]:
    """Parses lane:version,...; its pattern was checked before."""
    pairs = [pair.partition(":") for pair in text.split(",")] if text else []
    found = {int(lane): int(version) for lane, _, version in pairs}
    if len(found) != len(pairs) or len(found) > _AFTER_LANES_MAX:
        raise InvalidRequest(
            f"`after` must have each lane once and at most {_AFTER_LANES_MAX} lanes; the channel was not opened"
        )
    return found
