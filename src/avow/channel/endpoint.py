"""One end of a channel on the event loop: connects a core, its current socket and the application.

    application ── send, commit, ack_commit ──► Core ── packets, once a turn ──► socket of this generation
    hooks, waits ◄── events ────────────────────┘  ▲─────────── received ─────────────┘

The core makes all protocol decisions. Calls of the application go to the core at once; at the end of the loop's turn
everything goes to the store and then to the socket, so a thousand messages of one turn are a few packets and one call
of the store. Received packets go to the core at once, and hooks are called before the socket is read again.

In one turn a channel reads CHANNEL_TURN_FRAMES frames and hands the application CHANNEL_TURN_MESSAGES messages and
commits. The rest waits for the next turn, in order, and the socket is not read meanwhile: other connections come first.

Hooks are application code. If one raises, the channel ends, the other end receives ABORTED, and the loop's exception
handler gets the error; the loop keeps running.

A value that was sent belongs to the channel until it is acknowledged or handed back: it is not copied, so it must not
be changed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import (
    CommitAcked,
    CommitDelivered,
    Connected,
    Ended,
    Event,
    Messages,
    Pending,
    Resumed,
)
from avow.channel.protocol.frames import Buffer, EndCode, Frame, Hello, read_packet
from avow.channel.protocol.states import Link
from avow.channel.waiters import Callback, CommitWaits, Waiters
from avow.errors import AvowError, ChannelFailed
from avow.limits import (
    CHANNEL_PACKET_SIZE_BYTES,
    CHANNEL_TURN_FRAMES,
    CHANNEL_TURN_MESSAGES,
    CHANNEL_TURN_SIZE_BYTES,
    KIB,
)

if TYPE_CHECKING:
    from avow.channel.protocol.events import CommitDelivered
    from avow.channel.stores import PendingStore
    from avow.channel.transports.socket import Socket


class Inbox:
    """Received values, and the commits between them, that the application has not taken yet.

    A commit is given to the application after everything it covers, never before: otherwise its acknowledgement would
    mean nothing. Values in the inbox are bounded by what the channel accepts beyond its last acknowledged commit. Of
    the commits at one place only the first and the newest are kept, which bounds them too and loses no information.
    """

    def __init__(self) -> None:
        self._values: deque[memoryview] = deque()
        self._handed_to = 0  # the last message that the application has taken
        self._commits: deque[CommitDelivered] = deque()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def commits_count(self) -> int:
        return len(self._commits)

    def put(self, values: Iterable[memoryview]) -> None:
        self._values.extend(values)

    def take(self) -> bytes:
        self._handed_to += 1
        return bytes(self._values.popleft())

    def take_some(self, *, count_max: int, size_bytes: int) -> list[memoryview]:
        """Up to so many values, of up to that size together; at least one."""
        values = [self._values.popleft()]
        size_bytes -= len(values[0])
        while self._values and len(values) < count_max and size_bytes >= len(self._values[0]):
            values.append(self._values.popleft())
            size_bytes -= len(values[-1])
        self._handed_to += len(values)
        return values

    def bypassed(self, count: int) -> None:
        """This many messages went to the application directly, not through the inbox."""
        self._handed_to += count

    def put_commit(self, commit: CommitDelivered) -> None:
        commits = self._commits
        if len(commits) > 1 and commits[-1].upto == commits[-2].upto == commit.upto:
            commits.pop()
        commits.append(commit)

    @property
    def commit_due(self) -> bool:
        """Whether the application has taken all messages of the next commit."""
        return bool(self._commits) and self._commits[0].upto <= self._handed_to

    def take_commit(self) -> int:
        return self._commits.popleft().id


_PACKET_SIZE_BYTES_MIN: Final = KIB


class Owner(Protocol):
    """Provides a channel with sockets: a `Connector` at the initiator, a `Registry` at the acceptor."""

    def connected(self, channel: Channel) -> None: ...

    def detached(self, channel: Channel, reason: str) -> None: ...

    def channel_ended(self, channel: Channel, ended: Ended) -> None: ...


class Commit:
    """A commit that was issued. Awaiting it waits until it or a newer one is acknowledged, and may be cancelled.

    The wait raises ChannelFailed if the channel ends first.
    """

    __slots__ = ("_channel", "id")

    def __init__(self, channel: Channel, commit_id: int) -> None:
        self._channel, self.id = channel, commit_id

    def __await__(self) -> Generator[Any, None, None]:
        return self._channel.wait_acked(self.id).__await__()


class Attachment:
    """Binds one socket to a channel (SocketUser). The core ignores packets of an older socket by its generation."""

    __slots__ = ("_channel", "_generation")

    def __init__(self, channel: Channel, *, generation: int = 0) -> None:
        self._channel, self._generation = channel, generation

    def opened(self, socket: Socket) -> None:
        self._generation = self._channel.attach(socket)

    def packet(self, socket: Socket, data: Buffer) -> None:  # noqa: ARG002
        self._channel.received(self._generation, data)

    def writable(self, socket: Socket) -> None:
        self._channel.writable_again(socket)

    def lost(self, socket: Socket, reason: str) -> None:
        self._channel.lost(self._generation, socket, reason)


class Channel:
    """Send, commit, acknowledge. All methods are called on the event loop's thread.

    Without `on_messages` values go to an inbox, from which `async for value in channel` takes them. `on_commit` is
    called when the application has taken everything the commit covers; the application must then call `ack_commit` at
    some point. Without that hook the commit is acknowledged automatically.
    """

    def __init__(self, core: Core, owner: Owner, *, store: PendingStore | None = None) -> None:
        self.core = core
        self.on_commit: Callable[[int], None] | None = None
        self.on_acked: Callable[[int], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.on_connect: Callable[[], None] | None = None
        self.on_end: Callable[[ChannelFailed | None], None] | None = None
        self._on_messages: Callable[[list[memoryview]], None] | None = None
        self._owner, self._store = owner, store
        self._loop = asyncio.get_running_loop()
        self._socket: Socket | None = None
        self._scheduled = self._dispatching = self._gave_up = self._reading_paused = False
        self._unsaved: list[Buffer] = []
        self._saved_to = 0
        self._unread: deque[tuple[int, Iterator[Frame]]] = deque()  # packets that wait for the next turn
        self._happened: deque[Event] = deque()  # events that wait for it
        self._loss: tuple[int, str] | None = None  # of the socket whose packets are in `_unread`
        self._paused = False  # the socket is not read before the next turn
        self._frames_left, self._messages_left = CHANNEL_TURN_FRAMES, CHANNEL_TURN_MESSAGES
        self._bytes_left = CHANNEL_TURN_SIZE_BYTES
        self._inbox = Inbox()
        self._waits = CommitWaits(self._call)
        self._readers, self._writers, self._watchers = Waiters(), Waiters(), Waiters()
        self._ended: Ended | None = None
        self._sockets = 0
        self._packet_bytes = CHANNEL_PACKET_SIZE_BYTES
        self._reached = -1  # the position that the other end reported at its last Hello

    # ------------------------------------------------------------------ sending

    def send(self, value: Buffer) -> None:
        """Sent at the end of this turn of the loop. Raises Busy while suspended, ChannelFailed after the end."""
        self.core.send(value)
        if self._store is not None:
            self._unsaved.append(value)
        if not self._scheduled:
            self._schedule()

    def resend(self, pending: Sequence[Pending]) -> None:
        """Send the pending messages of a failed channel again with the commit ids they had, before anything else."""
        before = self.core.out.sent_to
        try:
            self.core.resend(pending)
        finally:
            if self._store is not None:
                self._unsaved += [one.value for one in pending[: self.core.out.sent_to - before]]
            self._schedule()

    def commit(self, callback: Callback | None = None) -> Commit:
        """Covers everything sent before it. `callback` is called once, at its ack or a newer one's; not on failure."""
        commit_id = self.core.commit()
        if callback is not None:
            self._waits.add_callback(commit_id, callback)
        self._schedule()
        return Commit(self, commit_id)

    async def wait_acked(self, commit_id: int) -> None:
        if commit_id <= self.core.out.acked:
            return
        if self._ended is not None:
            raise self._error()
        await self._waits.wait(commit_id)

    @property
    def non_acked_message_count(self) -> int:
        return self.core.non_acked_message_count

    @property
    def suspended(self) -> bool:
        return self.core.suspended

    async def writable(self) -> None:
        """Wait until a message may be sent. Raises ChannelFailed if the channel ends or has ended."""
        while self.core.suspended:
            await self._writers.wait()
        if self.core.ended:
            await self.wait_ended()
            raise self._error()

    # ------------------------------------------------------------------ receiving

    def ack_commit(self, commit_id: int) -> None:
        """Everything up to this commit is processed. Idempotent; raises InvalidRequest for a commit never delivered."""
        self.core.ack_commit(commit_id)
        if not self._scheduled:
            self._schedule()

    @property
    def on_messages(self) -> Callable[[list[memoryview]], None] | None:
        return self._on_messages

    @on_messages.setter
    def on_messages(self, hook: Callable[[list[memoryview]], None] | None) -> None:
        """A new hook first gets what is in the inbox."""
        self._on_messages = hook
        if self._inbox:
            self._schedule()

    def __aiter__(self) -> Channel:
        return self

    async def __anext__(self) -> bytes:
        while not self._inbox:
            if self._ended is None:
                await self._readers.wait()
            elif self._failed:
                raise self._error()
            else:
                raise StopAsyncIteration
        value = self._inbox.take()
        self._deliver_commits()
        return value

    @property
    def uncommitted_bytes(self) -> int:
        """What it has received and no acknowledged commit covers, with a packet that has not arrived completely."""
        return self.core.incoming.uncovered_bytes + (self._socket.unfinished_bytes if self._socket is not None else 0)

    def pause_reading(self) -> None:
        """Read nothing from this and later sockets until `resume_reading`; what was read already is delivered."""
        self._reading_paused = True
        self._set_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._set_reading()

    # ------------------------------------------------------------------ the end

    @property
    def ended(self) -> bool:
        return self.core.ended

    @property
    def connected(self) -> bool:
        return self.core.link is Link.UP

    async def wait_ended(self) -> ChannelFailed | None:
        """Wait for the end. Returns None if the channel was closed with nothing pending here."""
        while self._ended is None:
            await self._watchers.wait()
        return self._error() if self._failed else None

    def close(self) -> None:
        """End the channel with CLOSED. Messages not covered by an acknowledged commit are handed back: await a commit
        first."""
        self.end(EndCode.CLOSED)

    def abort(self, text: str = "") -> None:
        self.end(EndCode.ABORTED, text=text or "the application gave up")

    def fail(self, error: AvowError) -> None:
        """End the channel with REFUSED and send the error to the other end."""
        self.end(EndCode.REFUSED, name=error.code, text=str(error))

    def cut(self) -> None:
        """Abort the socket, as if the network had failed. The channel continues over the next one."""
        if self._socket is not None:
            self._socket.abort()

    def end(self, code: EndCode, *, name: str = "", text: str = "") -> None:
        """After this the application receives only `on_end`. Idempotent."""
        if self.core.ended:
            return
        self._gave_up = True
        self.core.end(code, name=name, text=text)
        self._schedule()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            if not self.ended:
                await self.commit()
        except BaseException:
            self.abort()
            raise
        self.close()
        failed = await self.wait_ended()
        if failed is not None:
            raise failed

    @property
    def _failed(self) -> bool:
        ended = self._ended
        return ended is not None and (ended.code is not EndCode.CLOSED or bool(ended.pending))

    def _error(self) -> ChannelFailed:
        """A new exception each time: one raised in several places would collect the tracebacks of all of them."""
        assert self._ended is not None
        code, name, text, pending = self._ended.code, self._ended.name, self._ended.text, self._ended.pending
        why = f"{code.name}: {text}" if text else code.name
        return ChannelFailed(
            f"the channel has ended ({why}); {len(pending)} messages not covered by an acknowledged commit are handed "
            "back in `pending`. Open a new channel and send them again",
            reason=code.name,
            name=name,
            pending=pending,
        )

    # ------------------------------------------------------------------ sockets

    def attach(self, socket: Socket) -> int:
        """Initiator: attach a new socket. Returns its generation; 0, and the socket is closed, if the channel ended."""
        if self.core.ended:
            socket.close()
            return 0
        before, self._socket = self._socket, socket
        if before is not None:
            before.abort()
        self._replaced()
        generation = self.core.socket()
        self._flush()
        return generation

    def greet(self, socket: Socket, hello: Hello) -> int:
        """Acceptor: attach a new socket and its Hello. Returns its generation; 0 if it was refused."""
        generation = self.core.greeted(hello)
        if not generation:
            return 0
        before, self._socket = self._socket, socket
        if before is not None:
            before.send([self.core.fenced()])
            before.close()
        self._replaced()
        self._set_reading()
        self._schedule()
        return generation

    def _replaced(self) -> None:
        """What was not read on the socket before counts as lost with it: both ends resend what the other has not."""
        self._sockets += 1
        self._unread.clear()
        self._loss, self._paused = None, False

    def received(self, generation: int, data: Buffer) -> None:
        self._unread.append((generation, read_packet(data)))
        self._read()
        self._dispatch()
        if not self._scheduled and (self.core.has_output or self.core.ended):
            self._schedule()
        self._pace()

    def writable_again(self, socket: Socket) -> None:
        if socket is self._socket:
            self._flush()

    def lost(self, generation: int, socket: Socket, reason: str) -> None:
        if socket is not self._socket:
            return
        self._socket = None
        if self._unread:  # it came before the loss
            self._loss = generation, reason
        else:
            self._detach(generation, reason)

    def _detach(self, generation: int, reason: str) -> None:
        self.core.lost(generation)
        if not self.core.ended:
            self._owner.detached(self, reason)

    # ------------------------------------------------------------------ a turn of the loop

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        self._scheduled = False
        self._frames_left, self._messages_left = CHANNEL_TURN_FRAMES, CHANNEL_TURN_MESSAGES
        self._bytes_left = CHANNEL_TURN_SIZE_BYTES
        if self._inbox and self._on_messages is not None:
            self._offer()
        self._deliver_commits()
        self._dispatch()
        self._read()
        self._dispatch()
        self._flush()
        if self._ended is None and self.core.ended:  # the store failed at the flush
            self._dispatch()
        self._pace()

    def _read(self) -> None:
        while self._unread and not self._happened and self._frames_left > 0:
            generation, frames = self._unread[0]
            count = self.core.read(generation, frames, count_max=self._frames_left)
            if count < self._frames_left:
                self._unread.popleft()
            self._frames_left -= count

    @property
    def _behind(self) -> bool:
        """The application has not taken everything that it may take."""
        if self._gave_up:
            return False
        return (bool(self._inbox) and self._on_messages is not None) or self._inbox.commit_due

    def _pace(self) -> None:
        """Read the socket only while nothing waits for the next turn."""
        waits = bool(self._unread or self._happened) or self._behind
        if waits:
            self._schedule()
        if waits is not self._paused:
            self._paused = waits
            self._set_reading()
        if self._loss is not None and not self._unread:
            loss, self._loss = self._loss, None
            self._detach(*loss)

    def _set_reading(self) -> None:
        if self._socket is None:
            return
        if self._paused or self._reading_paused:
            self._socket.pause_reading()
        else:
            self._socket.resume_reading()

    def _flush(self) -> None:
        core = self.core
        if self._unsaved:
            self._save()
        socket = self._socket
        if socket is None:
            return
        if core.ended:
            self._socket = None
            if farewell := core.packet():
                socket.send(farewell)
            socket.close()
            return
        while not socket.full and (parts := core.packet(self._packet_bytes)):
            socket.send(parts)

    def _save(self) -> None:
        """Messages go to the store before they go to a socket; if the store fails, the channel ends."""
        assert self._store is not None
        values, self._unsaved = self._unsaved, []
        try:
            self._store.append(self._saved_to + 1, values)
        except Exception as error:
            self.application_raised(error)
            return
        self._saved_to += len(values)

    # ------------------------------------------------------------------ events

    def _dispatch(self) -> None:
        """Hooks may call any method; the events of those calls are dispatched here, after the earlier ones."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while not self._behind:
                if not self._happened:
                    self._happened.extend(self.core.take_events())
                if not self._happened:
                    return
                self._handle(self._happened.popleft())
        finally:
            self._dispatching = False

    def _handle(self, event: Event) -> None:
        if type(event) is CommitAcked:
            self._acked(event.id)
        elif type(event) is Ended:
            self._over(event)
        elif self._gave_up:
            return
        elif type(event) is Messages:
            self._take(event.values)
        elif type(event) is CommitDelivered:
            self._inbox.put_commit(event)
            self._deliver_commits()
        elif type(event) is Resumed:
            self._resumed()
        elif type(event) is Connected:
            self._fit_packets()
            self._owner.connected(self)
            if self.on_connect is not None:
                self._call(self.on_connect)

    def _fit_packets(self) -> None:
        """Halve the packet size if the last socket was lost before one packet arrived: it may have been too large."""
        reached, before = self.core.out.received_to, self._reached
        self._reached = reached
        if reached == before and self.core.out.waiting:
            self._packet_bytes = max(_PACKET_SIZE_BYTES_MIN, self._packet_bytes // 2)

    def _take(self, values: list[memoryview]) -> None:
        size_bytes = sum(map(len, values))
        now = not self._inbox and len(values) <= self._messages_left and size_bytes <= self._bytes_left
        if self._on_messages is None or not now:
            self._inbox.put(values)
            self._offer()
        else:
            self._inbox.bypassed(len(values))
            self._messages_left -= len(values)
            self._bytes_left -= size_bytes
            self._hand(self._on_messages, values)

    def _offer(self) -> None:
        if self._on_messages is None:
            self._readers.wake()
            return
        if self._messages_left > 0 and self._bytes_left > 0 and not self._gave_up:
            values = self._inbox.take_some(count_max=self._messages_left, size_bytes=self._bytes_left)
            self._messages_left -= len(values)
            self._bytes_left -= sum(map(len, values))
            self._hand(self._on_messages, values)
        self._deliver_commits()

    def _deliver_commits(self) -> None:
        while not self._gave_up and self._inbox.commit_due:
            if self._messages_left <= 0:
                self._schedule()
                return
            self._messages_left -= 1
            commit_id = self._inbox.take_commit()
            if self.on_commit is not None:
                self._hand(self.on_commit, commit_id)
            else:
                self.ack_commit(commit_id)

    def _acked(self, commit_id: int) -> None:
        if self._store is not None and self._saved_to:
            try:
                self._store.release(self.core.out.released_to)
            except Exception as error:
                self.application_raised(error)
        self._packet_bytes = min(CHANNEL_PACKET_SIZE_BYTES, 2 * self._packet_bytes)
        self._waits.acked(commit_id)
        if self.on_acked is not None:
            self._call(self.on_acked, commit_id)

    def _resumed(self) -> None:
        """Not reported if an earlier hook has filled the channel to its limit again."""
        if self.core.suspended:
            return
        self._writers.wake()
        if self.on_resume is not None:
            self._call(self.on_resume)

    def _over(self, ended: Ended) -> None:
        self._ended = ended
        self._waits.fail(self._error)
        for waiters in (self._readers, self._writers, self._watchers):
            waiters.wake()
        self._owner.channel_ended(self, ended)
        if self.on_end is not None:
            self._call(self.on_end, self._error() if self._failed else None)

    def _hand(self, hook: Callable[[Any], None], argument: object) -> None:
        """For hooks that may refuse: an AvowError is sent to the other end."""
        try:
            hook(argument)
        except AvowError as error:
            self.fail(error)
        except Exception as error:
            self.application_raised(error)

    def _call(self, hook: Callable[..., None], *arguments: object) -> None:
        try:
            hook(*arguments)
        except Exception as error:
            self.application_raised(error)

    def application_raised(self, error: Exception) -> None:
        """Application code raised: report it to the loop's exception handler and end the channel."""
        self._loop.call_exception_handler(
            {
                "message": "a channel's hook, callback, store or dial raised; the channel ends",
                "exception": error,
            }
        )
        self.end(EndCode.ABORTED, text="the application failed while handling the channel")

    def statistics(self) -> dict[str, Any]:
        return {
            **self.core.statistics(),
            "sockets": self._sockets,
            "inbox": len(self._inbox),
            "commits_due": self._inbox.commits_count,
            "waits": len(self._waits),
        }
