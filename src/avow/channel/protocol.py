"""One end of a channel: the rules of in-band commits, without a clock, a socket or a thread.

Both ends run this class; they differ in who opens sockets (`initiator`). Inputs are calls. What they lead to is taken
from two places, in this order, after each input or each turn of an event loop:

    take_events()   what happened, in order, for the application
    packet()        bytes for the current socket, one packet at a time, until it gives none

    application  send, commit, ack_commit, end ──┐            ┌──► events: Messages, CommitDelivered, CommitAcked,
    socket       socket, received, lost ─────────┼──► Core ───┤            Suspended, Resumed, Connected, Ended
                                                 ┘            └──► packets

A socket is known here by its generation. The initiator counts generations up, and the acceptor takes a Hello only if
its generation is higher than every one before. From that moment the older socket is fenced: nothing it still says is
heard, nothing is given to it.

What can go wrong is of two kinds. The application's misuse raises and changes nothing. The other end's misbehaviour
ends the channel: an Ended event with every pending message, and a last packet that tells the other end why.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from itertools import groupby
from typing import TypeAlias

from msgspec import Struct

from avow import limits
from avow.channel import states
from avow.channel.frames import (
    CAP_MAX,
    Ack,
    Buffer,
    Commit,
    Data,
    End,
    EndCode,
    Hello,
    ack_bytes,
    end_bytes,
    hello_bytes,
    read_packet,
)
from avow.channel.incoming import Incoming
from avow.channel.outgoing import VALUE_OVERHEAD_BYTES, Outgoing, Pending
from avow.channel.states import Link, Receiver, Sender
from avow.errors import Busy, ChannelFailed, InvalidRequest, Malformed, TooLarge


class Messages(Struct, frozen=True):
    """Values are slices of the packet they came in."""

    first: int
    values: list[memoryview]


class CommitDelivered(Struct, frozen=True, gc=False):
    id: int
    upto: int


class CommitAcked(Struct, frozen=True, gc=False):
    """Every wait for this commit or an older one is over."""

    id: int


class Suspended(Struct, frozen=True, gc=False):
    pass


class Resumed(Struct, frozen=True, gc=False):
    pass


class Connected(Struct, frozen=True, gc=False):
    """Both Hellos are heard on the socket of this generation."""

    generation: int


class Ended(Struct, frozen=True):
    """The channel is over for good. `remote`: the other end said so. `pending` is handed back once, here."""

    code: EndCode
    name: str
    text: str
    remote: bool
    pending: list[Pending]


Event: TypeAlias = Messages | CommitDelivered | CommitAcked | Suspended | Resumed | Connected | Ended


class Bounds(Struct, frozen=True, gc=False, kw_only=True):
    """`pending_*`: where this end's sender is suspended. `cap_*`: what this end takes as a receiver."""

    pending_count: int = limits.CHANNEL_PENDING_COUNT
    pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES
    cap_count: int = limits.CHANNEL_CAP_COUNT
    cap_bytes: int = limits.CHANNEL_CAP_SIZE_BYTES


class Core:
    """`last_commit`: ids continue after this one, for a sender whose commits mean something beyond this channel."""

    def __init__(
        self,
        *,
        channel: bytes,
        token: bytes,
        initiator: bool,
        bounds: Bounds | None = None,
        window_s: int = 0,
        last_commit: int = 0,
    ) -> None:
        bounds = bounds or Bounds()
        check_bounds(bounds)
        self.channel, self.token, self.initiator, self.window_s = channel, token, initiator, window_s
        self.generation = 0
        self.link, self.sender, self.receiver = Link.DOWN, Sender.FLOWING, Receiver.CLEAR
        self.out = Outgoing(last_commit=last_commit)
        self.incoming = Incoming(cap_count=bounds.cap_count, cap_bytes=bounds.cap_bytes)
        self._bounds = bounds
        self._limit_count = min(bounds.pending_count, limits.CHANNEL_CAP_COUNT_MIN)
        self._limit_bytes = min(bounds.pending_bytes, _sendable(limits.CHANNEL_CAP_SIZE_BYTES_MIN))
        self._greeted = False  # a Hello of the other end was ever heard
        self._hello_due = False
        self._farewell = b""
        self._events: list[Event] = []

    # ------------------------------------------------------------------ the application

    @property
    def ended(self) -> bool:
        return self.link is Link.ENDED

    @property
    def suspended(self) -> bool:
        return self.sender is Sender.SUSPENDED

    @property
    def non_acked_message_count(self) -> int:
        return self.out.count

    def send(self, value: Buffer) -> int:
        """The message's number. Raises Busy while suspended: wait for Resumed. At the limit it commits by itself."""
        if self.sender is not Sender.FLOWING:
            raise self._cannot_send()
        if len(value) > limits.CHANNEL_VALUE_SIZE_BYTES_MAX:
            raise TooLarge(
                f"a message has at most {limits.CHANNEL_VALUE_SIZE_BYTES_MAX} bytes, not {len(value)}; it was not sent"
            )
        out = self.out
        number = out.send(value)
        if out.sent_to - out.released_to >= self._limit_count or out.size_bytes >= self._limit_bytes:
            out.commit()
            self._suspend("send to the limit")
        return number

    def _cannot_send(self) -> Busy | ChannelFailed:
        if self.ended:
            return ChannelFailed("this channel is over; the message was not sent. Open a new one", reason="ENDED")
        return Busy(
            f"{self.out.count} messages wait for an acknowledged commit, which is the limit; this one was not sent. "
            "Wait until the channel resumes"
        )

    def commit(self) -> int:
        """The commit's id. It covers what was sent before it, if anything; it is never blocked."""
        if self.ended:
            raise ChannelFailed("this channel is over; nothing was committed. Open a new one", reason="ENDED")
        commit_id = self.out.commit()
        if self.sender is Sender.FLOWING and self._at_limit():
            self._suspend("commit at the limit")
        else:
            self.sender = states.SENDER[self.sender, "commit"]
        return commit_id

    def resend(self, pending: Sequence[Pending]) -> None:
        """The messages of a channel that failed, under the same commit ids: what a commit covered, it covers again.

        Raises Busy, with nothing sent, if they are more than may be pending here. Before the other end's first Hello
        that is what every receiver takes: who allows itself more waits for Connected.
        """
        if pending and not self._has_room(pending[:-1]):
            raise self._cannot_resend(len(pending))
        for commit_id, group in groupby(pending, key=lambda one: one.commit):
            self.out.skip_commits(commit_id - 1)
            for one in group:
                self.send(one.value)
            if commit_id and self.out.covered_to < self.out.sent_to:
                self.commit()

    def _has_room(self, before_last: Sequence[Pending]) -> bool:
        """Whether the sender still flows after these; the last message may reach the limit."""
        count = self.out.count + len(before_last)
        size_bytes = self.out.size_bytes + sum(len(one.value) + VALUE_OVERHEAD_BYTES for one in before_last)
        flowing = self.sender is Sender.FLOWING
        return flowing and count < self._limit_count and size_bytes < self._limit_bytes

    def _cannot_resend(self, count: int) -> Busy | ChannelFailed:
        if self.ended:
            return self._cannot_send()
        return Busy(
            f"{count} messages to send again are more than this channel takes now; none was sent. "
            "Wait until it is connected, or until it resumes"
        )

    def ack_commit(self, commit_id: int) -> None:
        """The application has done with everything up to this commit. Twice is harmless, also after the end."""
        if self.ended:
            return
        before = self.incoming.acked
        if not self.incoming.ack(commit_id):
            raise InvalidRequest(f"commit {commit_id} was never delivered here; nothing was acknowledged")
        if self.incoming.acked > before:
            which = "ack of an older commit" if self.incoming.owing else "ack of the newest commit"
            self.receiver = states.RECEIVER[self.receiver, which]

    def end(self, code: EndCode, *, name: str = "", text: str = "") -> None:
        """Give up, or finish. Pending messages are handed back with the Ended event; the other end is told."""
        if self.ended:
            return
        self._finish(End(code, self.incoming.acked, self.incoming.received_to, name, text), remote=False)

    # ------------------------------------------------------------------ sockets

    def socket(self) -> int:
        """Initiator: a new socket. Its generation, by which `received` and `lost` know it."""
        self.generation += 1
        self._attach()
        return self.generation

    def greeted(self, hello: Hello) -> int:
        """Acceptor: the Hello that came first on a new socket. Its generation, or 0: that socket is refused.

        0 with the channel alive means the socket is of the past: answer it `fenced()` and close it.
        """
        if self.ended or hello.generation <= self.generation or not self.knows(hello):
            return 0
        self.generation = hello.generation
        self._attach()
        self._hear_hello(hello)
        return hello.generation

    def knows(self, hello: Hello) -> bool:
        return hello.channel == self.channel and compare_digest(hello.token, self.token)

    def received(self, generation: int, packet: Buffer) -> None:
        """A packet from the socket of that generation. Late ones of a fenced socket are not heard."""
        if generation != self.generation or self.link not in (Link.GREETING, Link.UP):
            return
        try:
            for frame in read_packet(packet):
                self._hear(frame)
                if self.link not in (Link.GREETING, Link.UP):
                    return
        except Malformed as error:
            self._violated(str(error))

    def lost(self, generation: int) -> None:
        """That socket is gone. No harm is done: the channel waits for the next."""
        if generation == self.generation and self.link in (Link.GREETING, Link.UP):
            self.link = states.LINK[self.link, "socket lost"]

    def _attach(self) -> None:
        self.link = states.LINK[self.link, "socket"]
        self._hello_due = True

    # ------------------------------------------------------------------ what comes out

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def has_output(self) -> bool:
        if self.link is Link.UP:
            return self._hello_due or self.out.waiting or self.incoming.acked > self.incoming.acked_given
        return bool(self._farewell) or (self._hello_due and self.link is Link.GREETING)

    def packet(self, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Buffer]:
        """The next packet of the current socket, in pieces; empty when there is nothing to say now."""
        if self._farewell:
            farewell, self._farewell = self._farewell, b""
            return [farewell]
        parts: list[Buffer] = []
        if self.link not in (Link.GREETING, Link.UP):
            return parts
        if self._hello_due:
            self._hello_due = False
            parts.append(hello_bytes(self._hello()))
        if self.link is not Link.UP:
            return parts
        incoming = self.incoming
        if incoming.acked > incoming.acked_given:
            incoming.acked_given = incoming.acked
            parts.append(ack_bytes(incoming.acked))
        return parts + self.out.next_frames(size_bytes)

    def fenced(self) -> bytes:
        """For a socket of an older generation."""
        text = f"a socket of generation {self.generation} has taken over this channel"
        return end_bytes(End(EndCode.FENCED, self.incoming.acked, self.incoming.received_to, "", text))

    def _hello(self) -> Hello:
        incoming = self.incoming
        incoming.acked_given = incoming.acked
        return Hello(
            self.channel,
            self.token,
            self.generation,
            incoming.received_to,
            incoming.commits_received_to,
            incoming.acked,
            self._bounds.cap_count,
            self._bounds.cap_bytes,
            self.window_s,
            fresh=self.initiator and not self._greeted,
        )

    # ------------------------------------------------------------------ what comes in

    def _hear(self, frame: Hello | Data | Commit | Ack | End) -> None:
        if type(frame) is End:
            self._hear_end(frame)
        elif self.link is Link.GREETING:
            if type(frame) is Hello and self._answers(frame):
                self._hear_hello(frame)
            else:
                self._violated(f"a Hello of generation {self.generation} must come first on a socket")
        elif type(frame) is Data:
            self._hear_data(frame)
        elif type(frame) is Commit:
            self._hear_commit(frame)
        elif type(frame) is Ack:
            self._hear_ack(frame.id)
        else:
            self._violated("a second Hello came on one socket")

    def _answers(self, hello: Hello) -> bool:
        return self.initiator and hello.generation == self.generation and self.knows(hello)

    def _hear_hello(self, hello: Hello) -> None:
        impossible = self.out.possible(hello.received_to, hello.commits_received_to, hello.acked)
        if impossible:
            self.end(EndCode.IMPOSSIBLE, text=f"this channel cannot be resumed: {impossible}")
            return
        if hello.cap_count < limits.CHANNEL_CAP_COUNT_MIN or hello.cap_bytes < limits.CHANNEL_CAP_SIZE_BYTES_MIN:
            self._violated(f"a receiver must take more than {hello.cap_count} messages and {hello.cap_bytes} bytes")
            return
        self.link = states.LINK[self.link, "hello"]
        self._greeted = True
        self.out.resume(hello.received_to, hello.commits_received_to)
        self._limit_count = min(self._bounds.pending_count, hello.cap_count)
        self._limit_bytes = min(self._bounds.pending_bytes, _sendable(hello.cap_bytes))
        if hello.window_s and self.initiator:
            self.window_s = hello.window_s
        self._events.append(Connected(self.generation))
        if hello.acked:
            self._hear_ack(hello.acked)
        self._check_limit()

    def _hear_data(self, frame: Data) -> None:
        values = frame.values
        count, size_bytes = len(values), sum(map(len, values))
        if not self.incoming.takes(count, size_bytes):
            cap = f"{self._bounds.cap_count} messages or {self._bounds.cap_bytes} bytes"
            self.end(EndCode.CAP_EXCEEDED, text=f"more than {cap} came beyond the last acknowledged commit")
            return
        wrong = self.incoming.data(frame.first, count, size_bytes)
        if wrong:
            self._violated(wrong)
            return
        self.receiver = states.RECEIVER[self.receiver, "data"]
        self._events.append(Messages(frame.first, values))

    def _hear_commit(self, frame: Commit) -> None:
        wrong = self.incoming.commit(frame.id, frame.upto)
        if wrong:
            self._violated(wrong)
            return
        self.receiver = states.RECEIVER[self.receiver, "commit"]
        self._events.append(CommitDelivered(frame.id, frame.upto))

    def _hear_ack(self, commit_id: int) -> None:
        out, before = self.out, self.out.acked
        if not out.ack(commit_id):
            self._violated(f"commit {commit_id} was acknowledged and never sent")
            return
        if out.acked == before:
            return
        self._events.append(CommitAcked(out.acked))
        if self.suspended and self._at_low_mark():
            self.sender = states.SENDER[self.sender, "ack to the low mark"]
            self._events.append(Resumed())
        else:
            self.sender = states.SENDER[self.sender, "ack"]

    # ------------------------------------------------------------------ the limit

    def _at_limit(self) -> bool:
        return self.out.count >= self._limit_count or self.out.size_bytes >= self._limit_bytes

    def _at_low_mark(self) -> bool:
        return self.out.count <= self._limit_count // 2 and self.out.size_bytes <= self._limit_bytes // 2

    def _suspend(self, event: str) -> None:
        self.sender = states.SENDER[self.sender, event]
        self._events.append(Suspended())

    def _check_limit(self) -> None:
        """The other end takes less than was thought: what waits is committed, and the sender with it."""
        if not self.ended and self.sender is Sender.FLOWING and self._at_limit():
            self.commit()

    # ------------------------------------------------------------------ the end

    def _hear_end(self, end: End) -> None:
        """The other end's last word counts as far as it is possible. FENCED is about this socket only."""
        if end.code == EndCode.FENCED:
            self.lost(self.generation)
            return
        out = self.out
        if out.acked <= end.acked <= out.commits_given_to:
            self._hear_ack(end.acked)
        if end.code != EndCode.UNKNOWN_CHANNEL and out.released_to <= end.received_to <= out.ever_given_to:
            out.received_to = max(out.received_to, end.received_to)
            out.final = True
        self._finish(end, remote=True)

    def _violated(self, text: str) -> None:
        self.end(EndCode.PROTOCOL, text=f"the other end broke the rules: {text}")

    def _finish(self, end: End, *, remote: bool) -> None:
        if not remote and self.link in (Link.GREETING, Link.UP):
            self._farewell = end_bytes(end)
        code = EndCode(end.code) if end.code in EndCode.__members__.values() else EndCode.ABORTED
        self.link = states.LINK[self.link, "end"]
        self.sender = states.SENDER[self.sender, "end"]
        self.receiver = states.RECEIVER[self.receiver, "end"]
        self._events.append(Ended(code, end.name, end.text, remote, self.out.pending()))

    def statistics(self) -> dict[str, int | str]:
        out, incoming = self.out, self.incoming
        return {
            "link": self.link.value,
            "sender": self.sender.value,
            "receiver": self.receiver.value,
            "generation": self.generation,
            "sent_to": out.sent_to,
            "released_to": out.released_to,
            "pending": out.count,
            "pending_bytes": out.size_bytes,
            "commits": out.last_commit,
            "acked": out.acked,
            "received_to": incoming.received_to,
            "commits_received_to": incoming.commits_received_to,
            "acknowledged": incoming.acked,
        }


def check_bounds(bounds: Bounds) -> None:
    """Raises InvalidRequest: a limit of nothing, or a receiver that takes less than every sender may send."""
    if bounds.pending_count < 1 or bounds.pending_bytes < 1:
        raise InvalidRequest("a channel's limit is at least one message and one byte; it was not opened")
    if bounds.cap_count < limits.CHANNEL_CAP_COUNT_MIN or bounds.cap_bytes < limits.CHANNEL_CAP_SIZE_BYTES_MIN:
        raise InvalidRequest(
            f"a channel takes at least {limits.CHANNEL_CAP_COUNT_MIN} messages and "
            f"{limits.CHANNEL_CAP_SIZE_BYTES_MIN} bytes beyond the last acknowledged commit; it was not opened"
        )
    if max(bounds.cap_count, bounds.cap_bytes) > CAP_MAX:
        raise InvalidRequest(f"a channel's cap is at most {CAP_MAX}, in messages and in bytes; it was not opened")


def _sendable(cap_bytes: int) -> int:
    """Below this a sender may send one more message of any size and stays within the cap."""
    return cap_bytes - limits.CHANNEL_VALUE_SIZE_BYTES_MAX - VALUE_OVERHEAD_BYTES
