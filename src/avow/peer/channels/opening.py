"""What a channel is opened for: parameters checked, rights checked, before there is a socket.

    role         needs           takes
    producer     write           format=records, or format=json with `producer`
    subscriber   read, write     subscriber, member, from, format=ranges or json; moving a cursor is a write
    reader       read            lane, after, from, format=ranges or json
    observer     read            nothing; pub-sub queues only

A parameter that the role has no use for is refused, like an unknown one. What is left is an `Opening`: the queue as it
was found, and what to do with a channel when it has begun. Its `purpose` is what a channel is resumed for: the same
parameters, the same queue, asked by the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import Struct, structs
from msgspec.json import Encoder

from avow.errors import InvalidRequest
from avow.peer.channels.following import Reader
from avow.peer.channels.observing import Observer
from avow.peer.channels.producing import JsonProducer, RecordsProducer
from avow.peer.channels.subscribing import Subscriber
from avow.peer.http.handlers_queues import check_name, check_not_internal

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.access import Right, Token
    from avow.peer.channels.figures import Figures
    from avow.peer.http.api import Api
    from avow.peer.http.shapes import ChannelParameters
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue

RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "producer": ("write",),
    "subscriber": ("read", "write"),
    "reader": ("read",),
    "observer": ("read",),
}
_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "producer": frozenset({"format", "producer"}),
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
    """What a channel does here. It has set the channel's hooks."""


Make: TypeAlias = Callable[["Peer", "Channel", "Figures"], Role]


class Opening(Struct, frozen=True):
    """`make` gives a channel its role, once it has begun."""

    role: str
    purpose: str
    make: Make


def opening_of(api: Api, token: Token, asked: ChannelParameters) -> Opening:
    """Raises what the request is to be answered with."""
    for right in RIGHTS[asked.role]:
        token.check(right, asked.queue)
    if "write" in RIGHTS[asked.role]:
        check_not_internal(asked.queue)
    _check_parameters(asked)
    queue = api.queue(asked.queue)
    api.check_held(queue)
    said = _encode([token.name, structs.asdict(asked), queue.first_lane])
    return Opening(asked.role, said.decode(), _MAKES[asked.role](api, queue, asked))


def _check_parameters(asked: ChannelParameters) -> None:
    """What cannot be said in the types."""
    role, takes = asked.role, _TAKES[asked.role]
    for field in structs.fields(asked):
        given = getattr(asked, field.name) != field.default
        if given and field.name not in takes and not field.required:
            raise InvalidRequest(f"a {role}'s channel has no use for `{field.encode_name}`; it was not opened")
    formats = _FORMATS.get(role, ())
    if asked.format is not None and asked.format not in formats:
        raise InvalidRequest(f"a {role}'s format is {' or '.join(formats)}, not {asked.format}; it was not opened")


def _producer(_: Api, queue: Queue, asked: ChannelParameters) -> Make:
    named = asked.producer
    if asked.format != "json":
        if named is not None:
            raise InvalidRequest("`producer` goes with format=json: records have write ids; it was not opened")
        return lambda peer, channel, figures: RecordsProducer(peer, channel, queue, figures)
    if named is None:
        raise InvalidRequest("format=json needs `producer`, 32 hex digits: write ids are made of it; it was not opened")
    return lambda peer, channel, figures: JsonProducer(peer, channel, queue, figures, producer=bytes.fromhex(named))


def _subscriber(_: Api, queue: Queue, asked: ChannelParameters) -> Make:
    name = asked.subscriber
    if name is None:
        raise InvalidRequest("name the `subscriber` whose cursor is to be read from; it was not opened")
    check_name("subscriber", name)
    if asked.member:
        check_name("member", asked.member)
    return lambda peer, channel, figures: Subscriber(
        peer,
        channel,
        queue,
        figures,
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
    return lambda peer, channel, figures: Reader(
        peer,
        channel,
        queue,
        figures,
        lane=asked.lane,
        after=after,
        from_end=asked.from_ == "end",
        json=asked.format == "json",
    )


def _observer(_: Api, queue: Queue, asked: ChannelParameters) -> Make:  # noqa: ARG001
    if queue.strategy != "pub-sub":
        raise InvalidRequest(f"queue {queue.name!r} is two-phase; only pub-sub queues are observed. It was not opened")
    return lambda peer, channel, figures: Observer(peer, channel, queue, figures)


_MAKES: Final[Mapping[str, Callable[[Any, Any, Any], Make]]] = {
    "producer": _producer,
    "subscriber": _subscriber,
    "reader": _reader,
    "observer": _observer,
}


def _versions(text: str) -> dict[int, int]:
    """lane:version,... as its pattern has it."""
    pairs = [pair.partition(":") for pair in text.split(",")] if text else []
    found = {int(lane): int(version) for lane, _, version in pairs}
    if len(found) != len(pairs) or len(found) > _AFTER_LANES_MAX:
        raise InvalidRequest(f"`after` names each lane once, and at most {_AFTER_LANES_MAX}; it was not opened")
    return found
