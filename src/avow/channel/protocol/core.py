"""One end of a channel: the protocol of in-band commits, without a clock, a socket or a thread.

Both ends run this class; they differ in who opens sockets (`initiator`). Inputs are method calls. After each input, or
once per turn of the event loop, the caller takes the output from two methods, in this order:

    take_events()   what happened, in order, for the application
    packet()        bytes for the current socket, one packet per call, until it returns none

    application  send, commit, ack_commit, end ──┐            ┌──► events: Messages, CommitDelivered, CommitAcked,
    socket       socket, received, lost ─────────┼──► Core ───┤            Suspended, Resumed, Connected, Ended
                                                 ┘            └──► packets

The core identifies a socket by its generation. The initiator increments the generation for each socket, and the
acceptor accepts a Hello only if its generation is higher than every earlier one. From then on the older socket is
fenced: packets from it are ignored and nothing more is sent on it.

There are two kinds of errors. Misuse by the application raises and changes nothing. A protocol violation by the other
end ends the channel: it produces an Ended event with every pending message, and a last packet that tells the other end
why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hmac import compare_digest
from itertools import groupby

from avow import limits
from avow.channel.protocol import states
from avow.channel.protocol.events import (
    VALUE_OVERHEAD_BYTES,
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
from avow.channel.protocol.frames import (
    CAP_MAX,
    Ack,
    Buffer,
    Commit,
    Data,
    End,
    EndCode,
    Frame,
    Hello,
    ack_bytes,
    end_bytes,
    hello_bytes,
    read_packet,
)
from avow.channel.protocol.incoming import Incoming
from avow.channel.protocol.outgoing import Outgoing
from avow.channel.protocol.states import Link, Receiver, Sender
from avow.errors import Busy, ChannelFailed, InvalidRequest, Malformed, TooLarge


class Core:
    """`last_commit`: commit ids continue after this one, for a sender whose commit ids outlive this channel."""

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
        self._greeted = False  # a Hello of the other end was ever received
        self._hello_due = False
        self._end_packet = b""
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
        """Queue a message and return its number. Reaching the limit issues a commit and suspends the sender.

        Raises Busy while suspended: wait for Resumed.
        """
        if self.sender is not Sender.FLOWING:
            raise self._cannot_send()
        if len(value) > limits.CHANNEL_VALUE_SIZE_BYTES_MAX:
            raise TooLarge(
                f"the message has {len(value)} bytes, the maximum is {limits.CHANNEL_VALUE_SIZE_BYTES_MAX}; "
                "it was not sent"
            )
        out = self.out
        number = out.send(value)
        if out.sent_to - out.released_to >= self._limit_count or out.size_bytes >= self._limit_bytes:
            out.commit()
            self._suspend("send to the limit")
        return number

    def _cannot_send(self) -> Busy | ChannelFailed:
        if self.ended:
            return ChannelFailed("this channel has ended; the message was not sent. Open a new channel", reason="ENDED")
        return Busy(
            f"the channel is suspended: {self.out.count} messages are not covered by an acknowledged commit; this "
            "message was not sent. Wait until the channel resumes"
        )

    def commit(self) -> int:
        """Issue a commit and return its id. It covers all messages sent before it, or none; it is never blocked."""
        if self.ended:
            raise ChannelFailed("this channel has ended; nothing was committed. Open a new channel", reason="ENDED")
        commit_id = self.out.commit()
        if self.sender is Sender.FLOWING and self._at_limit():
            self._suspend("commit at the limit")
        else:
            self.sender = states.SENDER[self.sender, "commit"]
        return commit_id

    def resend(self, pending: Sequence[Pending]) -> None:
        """Send the messages of a failed channel again with the same commit ids; each commit covers what it covered.

        Raises Busy, with nothing sent, if there are more than may be pending here. Until the other end's first Hello
        the limit is what every receiver accepts; a sender with a higher limit must wait for Connected.
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
        """Whether the sender is still FLOWING after these messages; the message after them may reach the limit."""
        count = self.out.count + len(before_last)
        size_bytes = self.out.size_bytes + sum(len(one.value) + VALUE_OVERHEAD_BYTES for one in before_last)
        flowing = self.sender is Sender.FLOWING
        return flowing and count < self._limit_count and size_bytes < self._limit_bytes

    def _cannot_resend(self, count: int) -> Busy | ChannelFailed:
        if self.ended:
            return self._cannot_send()
        return Busy(
            f"the channel cannot take {count} messages to resend now; none was sent. "
            "Wait until the channel is connected, or until it resumes"
        )

    def ack_commit(self, commit_id: int) -> None:
        """The application has processed everything up to this commit. Idempotent; ignored after the end."""
        if self.ended:
            return
        before = self.incoming.acked
        if not self.incoming.ack(commit_id):
            raise InvalidRequest(
                f"commit {commit_id} was never delivered on this channel; nothing was acknowledged. "
                "Acknowledge only commits that were delivered"
            )
        if self.incoming.acked > before:
            which = "ack of an older commit" if self.incoming.owing else "ack of the newest commit"
            self.receiver = states.RECEIVER[self.receiver, which]

    def end(self, code: EndCode, *, name: str = "", text: str = "") -> None:
        """End the channel. The Ended event hands back the pending messages; an End frame tells the other end."""
        if self.ended:
            return
        self._finish(End(code, self.incoming.acked, self.incoming.received_to, name, text), remote=False)

    # ------------------------------------------------------------------ sockets

    def socket(self) -> int:
        """Initiator: attach a new socket. Returns its generation, to be passed to `received` and `lost`."""
        self.generation += 1
        self._attach()
        return self.generation

    def greeted(self, hello: Hello) -> int:
        """Acceptor: attach a new socket by the Hello it began with. Returns its generation, or 0 if it is refused.

        0 while the channel is alive means that the socket is outdated: send `fenced()` on it and close it.
        """
        if self.ended or hello.generation <= self.generation or not self.matches(hello):
            return 0
        self.generation = hello.generation
        self._attach()
        self._handle_hello(hello)
        return hello.generation

    def matches(self, hello: Hello) -> bool:
        return hello.channel == self.channel and compare_digest(hello.token, self.token)

    def received(self, generation: int, packet: Buffer) -> None:
        """Process a packet from the socket of that generation. Packets from a fenced socket are ignored."""
        self.read(generation, read_packet(packet))

    def read(self, generation: int, frames: Iterator[Frame], *, count_max: int | None = None) -> int:
        """Process the next frames of a packet. Returns how many; fewer than `count_max` means that it is finished."""
        count = 0
        try:
            while generation == self.generation and self.link in (Link.GREETING, Link.UP) and count != count_max:
                self._handle_frame(next(frames))
                count += 1
        except StopIteration:
            pass
        except Malformed as error:
            self._violated(str(error))
        return count

    def lost(self, generation: int) -> None:
        """That socket was lost. The channel stays open and waits for the next socket."""
        if generation == self.generation and self.link in (Link.GREETING, Link.UP):
            self.link = states.LINK[self.link, "socket lost"]

    def _attach(self) -> None:
        self.link = states.LINK[self.link, "socket"]
        self._hello_due = True

    # ------------------------------------------------------------------ output

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def has_output(self) -> bool:
        if self.link is Link.UP:
            return self._hello_due or self.out.waiting or self.incoming.acked > self.incoming.acked_given
        return bool(self._end_packet) or (self._hello_due and self.link is Link.GREETING)

    def packet(self, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Buffer]:
        """The next packet for the current socket, in pieces; empty when there is nothing to send."""
        if self._end_packet:
            end_packet, self._end_packet = self._end_packet, b""
            return [end_packet]
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
        """The End packet for a socket of an older generation."""
        text = f"a newer socket, generation {self.generation}, has taken over this channel"
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

    # ------------------------------------------------------------------ input

    def _handle_frame(self, frame: Frame) -> None:
        if type(frame) is End:
            self._handle_end(frame)
        elif self.link is Link.GREETING:
            if type(frame) is Hello and self._answers(frame):
                self._handle_hello(frame)
            else:
                self._violated(f"the first frame on this socket must be a Hello of generation {self.generation}")
        elif type(frame) is Data:
            self._handle_data(frame)
        elif type(frame) is Commit:
            self._handle_commit(frame)
        elif type(frame) is Ack:
            self._handle_ack(frame.id)
        else:
            self._violated("a second Hello arrived on the same socket")

    def _answers(self, hello: Hello) -> bool:
        return self.initiator and hello.generation == self.generation and self.matches(hello)

    def _handle_hello(self, hello: Hello) -> None:
        impossible = self.out.possible(hello.received_to, hello.commits_received_to, hello.acked)
        if impossible:
            self.end(EndCode.IMPOSSIBLE, text=f"this channel cannot be resumed: {impossible}")
            return
        if hello.cap_count < limits.CHANNEL_CAP_COUNT_MIN or hello.cap_bytes < limits.CHANNEL_CAP_SIZE_BYTES_MIN:
            self._violated(
                f"its cap is {hello.cap_count} messages and {hello.cap_bytes} bytes, the minimum is "
                f"{limits.CHANNEL_CAP_COUNT_MIN} and {limits.CHANNEL_CAP_SIZE_BYTES_MIN}"
            )
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
            self._handle_ack(hello.acked)
        self._check_limit()

    def _handle_data(self, frame: Data) -> None:
        values = frame.values
        count, size_bytes = len(values), sum(map(len, values))
        if not self.incoming.takes(count, size_bytes):
            cap = f"{self._bounds.cap_count} messages or {self._bounds.cap_bytes} bytes"
            self.end(EndCode.CAP_EXCEEDED, text=f"more than {cap} arrived beyond the last acknowledged commit")
            return
        wrong = self.incoming.data(frame.first, count, size_bytes)
        if wrong:
            self._violated(wrong)
            return
        self.receiver = states.RECEIVER[self.receiver, "data"]
        self._events.append(Messages(frame.first, values))

    def _handle_commit(self, frame: Commit) -> None:
        wrong = self.incoming.commit(frame.id, frame.upto)
        if wrong:
            self._violated(wrong)
            return
        self.receiver = states.RECEIVER[self.receiver, "commit"]
        self._events.append(CommitDelivered(frame.id, frame.upto))

    def _handle_ack(self, commit_id: int) -> None:
        out, before = self.out, self.out.acked
        if not out.ack(commit_id):
            self._violated(f"commit {commit_id} was acknowledged but never sent")
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
        """The other end's cap is lower than assumed: commit what is pending, which suspends the sender."""
        if not self.ended and self.sender is Sender.FLOWING and self._at_limit():
            self.commit()

    # ------------------------------------------------------------------ the end

    def _handle_end(self, end: End) -> None:
        """The positions in the other end's End count if they are possible. FENCED concerns this socket only.

        Before its Hello an End may come from a process that does not know the channel: one that shuts down or is full,
        or another one behind the same address. Such an End has POSITION_UNKNOWN, or 0 if that process runs an older
        release. It must not decide fates: what is reported as unsent is sent again without asking whether it arrived.
        """
        if end.code == EndCode.FENCED:
            self.lost(self.generation)
            return
        out = self.out
        if out.acked <= end.acked <= out.commits_given_to:
            self._handle_ack(end.acked)
        known = end.code != EndCode.UNKNOWN_CHANNEL and (self.link is Link.UP or end.received_to > 0)
        if known and out.released_to <= end.received_to <= out.ever_given_to:
            out.received_to = max(out.received_to, end.received_to)
            out.final = True
        self._finish(end, remote=True)

    def _violated(self, text: str) -> None:
        self.end(EndCode.PROTOCOL, text=f"the other end violated the protocol: {text}")

    def _finish(self, end: End, *, remote: bool) -> None:
        if not remote and self.link in (Link.GREETING, Link.UP):
            self._end_packet = end_bytes(end)
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
    """Raises InvalidRequest for a zero limit, or a cap below what every sender is allowed to send."""
    if bounds.pending_count < 1 or bounds.pending_bytes < 1:
        raise InvalidRequest(
            "pending_count and pending_bytes of a channel must be at least 1; the channel was not opened"
        )
    if bounds.cap_count < limits.CHANNEL_CAP_COUNT_MIN or bounds.cap_bytes < limits.CHANNEL_CAP_SIZE_BYTES_MIN:
        raise InvalidRequest(
            f"cap_count of a channel must be at least {limits.CHANNEL_CAP_COUNT_MIN} and cap_bytes at least "
            f"{limits.CHANNEL_CAP_SIZE_BYTES_MIN}; the channel was not opened"
        )
    if max(bounds.cap_count, bounds.cap_bytes) > CAP_MAX:
        raise InvalidRequest(
            f"cap_count and cap_bytes of a channel must be at most {CAP_MAX}; the channel was not opened"
        )


def _sendable(cap_bytes: int) -> int:
    """Below this size a sender may send one more message of any size without exceeding the cap."""
    return cap_bytes - limits.CHANNEL_VALUE_SIZE_BYTES_MAX - VALUE_OVERHEAD_BYTES
