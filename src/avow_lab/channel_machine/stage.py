"""Two ends of a channel: their cores are opened as in use, and all of their output is checked.

A core has two outputs. Its packets are checked and go to a socket. Its events go to an application, which does nothing
by itself, and to the model, which decides whether they may happen. The input is in `moves`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from avow.channel.protocol import frames
from avow.channel.protocol.core import Core
from avow.channel.protocol.events import (
    Bounds,
    CommitAcked,
    CommitDelivered,
    Connected,
    Ended,
    Event,
    Messages,
    Pending,
    Resumed,
    Suspended,
)
from avow.channel.protocol.frames import POSITION_UNKNOWN, Commit, EndCode, Frame, Hello
from avow.errors import Busy
from avow_lab.channel_machine.checks import End, check_end, check_handed_back, check_size, check_written
from avow_lab.channel_machine.model import Direction, Share
from avow_lab.channel_machine.sockets import ACCEPTOR, DIALER, OTHER, Socket
from avow_lab.checkers.two_phase import Violation


class Stage:
    """One channel after another, between the same two applications."""

    def __init__(self, *, dialer: Share, acceptor: Share, core_class: type[Core] = Core) -> None:
        self.shares = {DIALER: dialer, ACCEPTOR: acceptor}
        self.core_class = core_class
        self.counts: Counter[str] = Counter()
        self.channels = self._sockets_made = self._values_made = 0
        self._saved: dict[str, Sequence[Pending]] = {DIALER: (), ACCEPTOR: ()}
        self.open()

    def open(self) -> None:
        self.channels += 1
        self.channel, self.token = self.channels.to_bytes(16), bytes(15) + b"\7"
        self.sockets: list[Socket] = []
        self.acceptor: End | None = None
        self.stored_end: frames.End | None = None
        there, back = (Direction(name, self.shares[name]) for name in (DIALER, ACCEPTOR))
        self.dialer = End(DIALER, self.core(DIALER), out=there, into=back)
        self.resend(self.dialer)

    def core(self, name: str) -> Core:
        share = self.shares[name]
        bounds = Bounds(
            pending_count=share.pending_count,
            pending_bytes=share.pending_bytes,
            cap_count=share.cap_count,
            cap_bytes=share.cap_bytes,
        )
        return self.core_class(
            channel=self.channel,
            token=self.token,
            initiator=name == DIALER,
            bounds=bounds,
            last_commit=share.last_commit,
        )

    def resend(self, end: End) -> None:
        """Resend the messages that the previous channel returned to the same application."""
        pending, self._saved[end.name] = self._saved[end.name], ()
        if not end.out.room_for(pending):
            try:
                end.core.resend(pending)
            except Busy:
                self.checked(end)
                return
            raise Violation("misuse", f"{len(pending)} messages were resent although they exceed the limit")
        end.core.resend(pending)
        end.out.resend(pending)
        self.counts["messages sent again"] += len(pending)
        self.checked(end)

    def end_named(self, name: str) -> End | None:
        return self.dialer if name == DIALER else self.acceptor

    def living(self, name: str) -> End | None:
        end = self.end_named(name)
        return end if end is not None and end.over is None else None

    # ------------------------------------------------------------------ output of a core

    def received(self, end: End, socket: Socket, generation: int, packet: bytes) -> None:
        packet_frames = list(frames.read_packet(packet))
        listening = end.socket is socket and end.over is None
        before = end.core.statistics()
        if listening:
            self.learn(end, socket, packet_frames)
        else:
            self.counts["late packets"] += 1
        end.core.received(generation, packet)
        if not listening and end.core.statistics() != before:
            raise Violation("fenced", f"the {end.name} accepted {packet_frames[0]} on a replaced socket")
        self.checked(end, packet_frames=packet_frames if listening else [])

    def written(self, end: End, socket: Socket, packet: bytes, size_bytes: int) -> None:
        packet_frames = list(frames.read_packet(packet))
        check_written(end, socket, packet_frames)
        check_size(end, packet_frames, size_bytes)
        for frame in packet_frames:
            if type(frame) is Commit:
                socket.commits[end.name] = frame.id
            if type(frame) is frames.Data:
                end.out.given_to = max(end.out.given_to, frame.first + len(frame.values) - 1)
        socket.ways[end.name].put(packet)

    @staticmethod
    def learn(end: End, socket: Socket, packet_frames: Sequence[Frame]) -> None:
        """Records what decides fates: how much the other end has acknowledged receiving, and whether it has ended."""
        for frame in packet_frames:
            if type(frame) is Hello:
                socket.commits[end.name] = frame.commits_received_to or end.out.share.last_commit
            if type(frame) is Hello:
                end.out.heard_to = max(end.out.heard_to, frame.received_to)
            elif type(frame) is frames.End and _knows_the_channel(frame, greeted=socket.greeted[OTHER[end.name]]):
                end.out.heard_to = max(end.out.heard_to, frame.received_to)
                end.out.final = True

    def checked(self, end: End, *, packet_frames: Sequence[Frame] = ()) -> None:
        for event in end.core.take_events():
            self._happened(end, event, packet_frames)
        check_end(end)

    def _happened(self, end: End, event: Event, packet_frames: Sequence[Frame]) -> None:
        if end.over is not None:
            raise Violation("handed back", f"{event} happened after the end of the {end.name}")
        self.counts[type(event).__name__] += 1
        if type(event) is Messages:
            self.counts["deliveries while an ack is owed"] += end.into.last_delivered > end.into.acked
            end.into.deliver(event.first, event.values)
        elif type(event) is CommitDelivered:
            end.into.deliver_commit(event.id, event.upto)
        elif type(event) is CommitAcked:
            self.counts["acks of superseded commits"] += event.id < end.out.issued
            end.out.learn(event.id)
        elif type(event) in (Suspended, Resumed):
            end.announced = type(event) is Suspended
        elif type(event) is Connected:
            end.connected = True
            end.out.caps_heard(self.shares[OTHER[end.name]])
        elif type(event) is Ended:
            self._ended(end, event, packet_frames)

    def _ended(self, end: End, event: Ended, packet_frames: Sequence[Frame]) -> None:
        received_ends = [
            one for one in packet_frames if type(one) is frames.End and (one.code, one.name, one.text) == _words(event)
        ]
        if event.remote != bool(received_ends) or (not event.remote and event.code not in end.may_end):
            raise Violation("ended", f"the {end.name} ended {event.code.name}: {event.text}")
        if received_ends and received_ends[0].acked > end.out.known_acked:
            raise Violation(
                "ack", f"the {end.name} ignored the ack of commit {received_ends[0].acked} in the other end's End"
            )
        check_handed_back(end, event)
        end.over = event
        self._saved[end.name] = event.pending
        for one in event.pending:
            self.counts[f"handed back, {one.fate}"] += 1
        self.counts[f"ended {event.code.name}"] += 1
        if end.name == ACCEPTOR:
            into = end.into
            self.stored_end = frames.End(event.code, into.acked, into.received, event.name, event.text)


def _knows_the_channel(end: frames.End, *, greeted: bool) -> bool:
    """Before its Hello an end shows that it knows the channel only by a position."""
    if end.code in (EndCode.UNKNOWN_CHANNEL, EndCode.FENCED):
        return False
    return end.received_to < POSITION_UNKNOWN and (greeted or end.received_to > 0)


def _words(event: Ended) -> tuple[int, str, str]:
    return (event.code, event.name, event.text)
