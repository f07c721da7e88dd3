"""Channels of scripted peers: the roles of `/v1/channel` over the shelf of a `ScriptedCluster`.

A producer's records go onto the shelf, unless `channels.takes` says otherwise, and its commits are acknowledged as long
as `channels.acks`. Readers and subscribers are pushed what lies on the shelf, a record to a group, and what comes
there later. What a real peer agrees upon with others (who reads for a subscriber) is a table that all of them share.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from avow.channel.endpoint import Channel
from avow.channel.protocol.frames import End, EndCode
from avow.channel.registry import Registry
from avow.channel.transports.websocket_handshake import accept
from avow.wire.batch import Batch
from avow.wire.ranges import range_parts
from avow.wire.record import unpack_entry

if TYPE_CHECKING:
    from tests.scripted_cluster import PeerServer, Request, ScriptedPeer

Takes = Callable[[int, bytes], "bool | str"]


class ChannelServer:
    """The channels of one run of one peer."""

    def __init__(self, peer: PeerServer) -> None:
        self.peer, self.shelf = peer, peer.cluster.shelf
        self.registry = Registry(window_s=5.0, channels_max=64)
        self.takes: Takes = lambda lane, record: True
        self.acks = True
        self.refusal: End | None = None  # of every new socket, before its Hello
        self.group_count = 1  # records that make one group
        self.open: list[Channel] = []
        self.asked: list[Request] = []
        self.roles = {"producer": Producing, "reader": Reading, "subscriber": Subscribing}

    def upgrade(self, connection: ScriptedPeer, request: Request) -> None:
        self.asked.append(request)
        user = self.registry.accept(request.target, partial(self._begin, request))
        headers = {name.encode(): value.encode() for name, value in request.headers.items()}
        response, make = accept(b"GET", request.target.encode(), headers, user)
        connection.transport.write(response)
        protocol = make()
        connection.transport.set_protocol(protocol)
        protocol.connection_made(connection.transport)
        if self.refusal is not None:
            user.refuse(self.refusal)

    def _begin(self, request: Request, channel: Channel) -> None:
        self.open.append(channel)
        self.roles[request.query["role"]](self, channel, request.query)

    def end_all(self, code: EndCode, *, name: str = "", text: str = "scripted") -> None:
        for channel in self.open:
            channel.end(code, name=name, text=text)

    def cut(self) -> None:
        """Lose every socket; the channels are kept."""
        self.registry.cut()


class Producing:
    def __init__(self, server: ChannelServer, channel: Channel, query: dict[str, str]) -> None:
        self.server, self.channel, self.queue = server, channel, query["queue"]
        channel.on_messages, channel.on_commit = self._messages, self._committed

    def _messages(self, values: list[memoryview]) -> None:
        for value in values:
            lane, record = int.from_bytes(value[:4], "little"), bytes(value[8:])
            answer = self.server.takes(lane, record)
            if answer is True:
                self.server.shelf.write(self.queue, lane, record)
            elif isinstance(answer, str):
                self.channel.end(EndCode.REFUSED, name=answer, text=f"scripted {answer}")
                return

    def _committed(self, commit_id: int) -> None:
        if self.server.acks:
            self.channel.ack_commit(commit_id)


class Reading:
    """From where the client says."""

    def __init__(self, server: ChannelServer, channel: Channel, query: dict[str, str]) -> None:
        self.server, self.channel, self.queue = server, channel, query["queue"]
        self.groups: deque[tuple[int, int, int]] = deque()
        self.after = self.starts(query)
        self.sent_to = dict(self.after)
        lanes = {str(lane): version for lane, version in self.after.items()}
        channel.send(json.dumps({"lanes": lanes}, separators=(",", ":")).encode())
        channel.on_resume = self.push
        server.shelf.watchers.append(self.push)
        self.push()

    def starts(self, query: dict[str, str]) -> dict[int, int]:
        after = dict(pair.split(":") for pair in query["after"].split(",")) if "after" in query else {}
        lanes = [int(query["lane"])] if "lane" in query else range(self.server.shelf.queues[self.queue]["lanes"])
        return {lane: int(after.get(str(lane), 0)) for lane in lanes}

    def push(self) -> None:
        for lane, after in self.sent_to.items():
            records = self.server.shelf.records.get((self.queue, lane), [])
            left = [(first, record) for first, record in records if first + Batch(record).count - 1 > after]
            for start in range(0, len(left), self.server.group_count):
                if not self.channel.ended and not self.channel.suspended:
                    self._push_group(lane, left[start : start + self.server.group_count])

    def _push_group(self, lane: int, records: list[tuple[int, bytes]]) -> None:
        parts: list[Any] = []
        for first, record in records:
            skip, whole = max(self.sent_to[lane] + 1 - first, 0), Batch(record).count
            entry = unpack_entry(record)
            parts += range_parts(entry, lane=lane, first_version=first + skip, offset=skip, count=whole - skip)
            self.sent_to[lane] = first + whole - 1
        self.channel.send(b"".join(parts))
        self.groups.append((self.channel.commit().id, lane, self.sent_to[lane]))


class Subscribing(Reading):
    """Cursors move with acks, and with what the client names. The last reader under a name reads; members share."""

    def __init__(self, server: ChannelServer, channel: Channel, query: dict[str, str]) -> None:
        self.name, self.member = query["subscriber"], query.get("member", "")
        self.cursors: dict[str, int] = server.shelf.cursors.setdefault((query["queue"], self.name), {})
        self._take_over(server, channel, query["queue"])
        super().__init__(server, channel, query)
        channel.on_acked, channel.on_messages, channel.on_commit = self._acked, self._named, channel.ack_commit

    def _take_over(self, server: ChannelServer, channel: Channel, queue: str) -> None:
        readers: dict[str, Any] = server.shelf.readers.setdefault((queue, self.name), {})
        for member, reader in list(readers.items()):
            if member == self.member or not self.member or not member:
                del readers[member]
                reader.end(EndCode.MOVED, name="FENCED", text="another one reads")
        readers[self.member] = channel
        for reader in readers.values():
            if reader is not channel:
                reader.end(EndCode.MOVED, text="lanes were shared out anew")

    def starts(self, query: dict[str, str]) -> dict[int, int]:
        members = sorted(self.server.shelf.readers[self.queue, self.name])
        lanes = range(self.server.shelf.queues[self.queue]["lanes"])
        mine = [lane for lane in lanes if members[lane % len(members)] == self.member]
        return {lane: self.cursors.get(str(lane), 0) for lane in mine}

    def _acked(self, commit_id: int) -> None:
        while self.groups and self.groups[0][0] <= commit_id:
            _, lane, version = self.groups.popleft()
            self._move(lane, version)

    def _named(self, values: list[memoryview]) -> None:
        for value in values:
            for lane, version in json.loads(bytes(value))["versions"].items():
                self._move(int(lane), version)

    def _move(self, lane: int, version: int) -> None:
        self.cursors[str(lane)] = max(version, self.cursors.get(str(lane), 0))
