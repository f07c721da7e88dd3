"""The moves of a walk: actions of the applications, the network and the acceptor's process, one at a time.

A move that makes no sense at the moment does nothing, so any sequence of moves is a walk. Every move checks everything
before it returns and raises a Violation.

The acceptor's process has one channel, or the End of one that has ended. A restart closes its sockets, as an operating
system does: a Hello never reaches a process that did not accept its socket.
"""

from __future__ import annotations

from typing import Final

from avow.channel.protocol import frames
from avow.channel.protocol.frames import POSITION_UNKNOWN, EndCode, Hello
from avow.channel.protocol.states import Link
from avow.errors import Busy, InvalidRequest
from avow_lab.channel_machine.checks import End
from avow_lab.channel_machine.model import Direction
from avow_lab.channel_machine.sockets import ACCEPTOR, DIALER, PACKETS_MAX, Socket
from avow_lab.channel_machine.stage import Stage
from avow_lab.checkers.two_phase import Violation

SOCKETS_KEPT: Final = 5  # old ones whose late packets may still arrive
ENDS: Final = (EndCode.CLOSED, EndCode.ABORTED, EndCode.REFUSED, EndCode.MOVED, EndCode.GOING, EndCode.EXPIRED)
TURNED_AWAY: Final = (EndCode.GOING, EndCode.REFUSED, EndCode.PROTOCOL)
POSITIONS: Final = (POSITION_UNKNOWN, 0)  # in the End of a process that does not know the channel; 0: of an older build
ACKS: Final = ("newest", "older", "again")
MISUSES: Final = ("ack what never came", "ack nothing", "send while suspended")
PACKET_SIZE_BYTES: Final = 65_536


class Moves(Stage):
    # ------------------------------------------------------------------ applications

    def send(self, name: str, *, size_bytes: int = 0, count: int = 1) -> None:
        end = self.living(name)
        for _ in range(count):
            if end is None or end.out.suspended:
                return
            self._values_made += 1
            value = b"%s %d;" % (name[:1].encode(), self._values_made) + bytes(size_bytes)
            number = end.core.send(value)
            if number != end.out.send(value):
                raise Violation("order", f"the {name} numbered a message {number}, not {len(end.out.values)}")
            self.checked(end)

    def commit(self, name: str) -> None:
        end = self.living(name)
        if end is None:
            return
        self.counts["commits while suspended"] += end.out.suspended
        self.counts["empty commits"] += end.out.uptos.get(end.out.issued, 0) == len(end.out.values)
        commit_id, expected = end.core.commit(), end.out.commit()
        if commit_id != expected:
            raise Violation("commit", f"the {name} has issued commit {commit_id}, not {expected}")
        self.checked(end)

    def ack(self, name: str, which: str, *, choice: int = 0) -> None:
        """A commit that was delivered to this end: the newest, an earlier one, or one acknowledged before."""
        end = self.living(name)
        if end is None:
            return
        into = end.into
        chosen = into.delivered[-1:]
        if which == "older":
            chosen = [one for one in into.delivered[:-1] if one > into.acked]
        elif which == "again":
            chosen = [one for one in into.delivered if one <= into.acked]
        if not chosen:
            return
        commit_id = chosen[choice % len(chosen)]
        self.counts[f"acks, {which}"] += 1
        self.counts["acks while down"] += end.core.link is not Link.UP
        end.core.ack_commit(commit_id)
        into.ack(commit_id)
        self.checked(end)

    def misuse(self, name: str, what: str) -> None:
        """Application errors, which must be refused and change nothing."""
        end = self.living(name)
        if end is None or (what == "send while suspended" and not end.out.suspended):
            return
        before = end.core.statistics()
        try:
            if what == "send while suspended":
                end.core.send(b"too much")
            else:
                end.core.ack_commit(0 if what == "ack nothing" else end.into.last_delivered + 1)
        except (Busy, InvalidRequest):
            if end.core.statistics() != before:
                raise Violation("misuse", f"{what}: refused, and {before} became {end.core.statistics()}") from None
            self.checked(end)
            return
        raise Violation("misuse", f"{what}: not refused")

    def end(self, name: str, code: EndCode) -> None:
        end = self.living(name)
        if end is None:
            return
        end.may_end = {code}
        end.core.end(code, name="NAME", text="because")
        self.checked(end)
        if end.over is None:
            raise Violation("ended", f"the {name} was ended but did not end")
        end.core.end(code)
        end.core.ack_commit(1)
        self.checked(end)

    # ------------------------------------------------------------------ network

    def dial(self) -> None:
        dialer = self.living(DIALER)
        if dialer is None:
            return
        self._sockets_made += 1
        dialer.socket = Socket(self._sockets_made, generation=dialer.core.socket())
        self.sockets = [*self.sockets[1 - SOCKETS_KEPT :], dialer.socket]
        self.counts["sockets"] += 1
        self.checked(dialer)

    def write(self, name: str, *, packets: int = 1, size_bytes: int = PACKET_SIZE_BYTES) -> None:
        """An end writes up to so many packets of about that size to its current socket."""
        end = self.end_named(name)
        if end is None or end.socket is None:
            return
        for _ in range(packets):
            parts = end.core.packet(size_bytes)
            if not parts:
                return
            self.written(end, end.socket, b"".join(parts), size_bytes)

    def deliver(self, index: int, writer: str, *, packets: int = 1) -> None:
        if not self.sockets:
            return
        socket = self.sockets[index % len(self.sockets)]
        for _ in range(packets):
            if not len(socket.ways[writer]):
                return
            packet = socket.ways[writer].take()
            if writer == DIALER:
                self._to_acceptor(socket, packet)
            else:
                self.received(self.dialer, socket, socket.generation, packet)

    def under_way(self) -> list[tuple[int, str]]:
        """Socket and writer of waiting packets, oldest first."""
        return [
            (index, writer)
            for index, socket in enumerate(self.sockets)
            for writer, way in socket.ways.items()
            if len(way)
        ]

    def cut(self, index: int, writer: str, *, keep: int = 0) -> None:
        if self.sockets:
            self.sockets[index % len(self.sockets)].ways[writer].cut(keep=keep)
            self.counts["cuts"] += 1

    def notice(self, name: str) -> None:
        """An end detects that its socket is lost. The other end may detect it much later."""
        end = self.living(name)
        if end is None or end.socket is None:
            return
        socket, end.socket = end.socket, None
        end.core.lost(socket.generation)
        if end.core.link is not Link.DOWN:
            raise Violation("fenced", f"the {name} lost its socket and is {end.core.link}")
        self.checked(end)

    def notice_old(self, name: str, index: int) -> None:
        """The loss of a replaced socket is detected late, and changes nothing."""
        end = self.living(name)
        socket = self.sockets[index % len(self.sockets)] if self.sockets else None
        if end is None or socket is None or socket is end.socket or (name == ACCEPTOR and not socket.accepted):
            return
        link = end.core.link
        end.core.lost(socket.generation)
        if end.core.link is not link:
            raise Violation("fenced", f"the loss of an old socket took the {name} from {link} to {end.core.link}")
        self.checked(end)

    # ------------------------------------------------------------------ the acceptor's process

    def _to_acceptor(self, socket: Socket, packet: bytes) -> None:
        if socket.accepted and self.acceptor is not None:
            self.received(self.acceptor, socket, socket.accepted, packet)
            return
        hello = next(frames.read_packet(packet))
        if socket.refused or not isinstance(hello, Hello):
            return
        acceptor = self.acceptor
        if acceptor is None and self.stored_end is None and hello.fresh:
            acceptor = self._begin()
        if acceptor is None or acceptor.over is not None:
            self._refuse(socket, frames.end_bytes(self.stored_end or frames.End(EndCode.UNKNOWN_CHANNEL)))
            return
        stale = hello.generation <= int(acceptor.core.statistics()["generation"])
        self.counts["stale Hellos"] += stale
        generation = acceptor.core.greeted(hello)
        if bool(generation) == stale:
            raise Violation(
                "fenced", f"a Hello of generation {hello.generation} is stale: {stale}; taken: {generation}"
            )
        if stale:
            self._refuse(socket, acceptor.core.fenced())
        else:
            socket.accepted, acceptor.socket = generation, socket
            self.learn(acceptor, socket, [hello])
        self.checked(acceptor)

    def turn_away(self, index: int, code: EndCode, *, position: int) -> None:
        """A process refuses a socket before it has read the Hello: it is shutting down, full, or not the acceptor's."""
        socket = self.sockets[index % len(self.sockets)] if self.sockets else None
        if socket is None or socket.accepted or socket.refused:
            return
        self.counts["turned away"] += 1
        self._refuse(socket, frames.end_bytes(frames.End(code, 0, position)))

    def _refuse(self, socket: Socket, answer: bytes) -> None:
        socket.refused = True
        socket.ways[ACCEPTOR].put(answer)
        socket.ways[DIALER].cut()

    def _begin(self) -> End:
        if self.dialer.connected or self.dialer.out.received:
            raise Violation("begun anew", "an acceptor began a channel whose other end had received a Hello before")
        back = Direction(ACCEPTOR, self.shares[ACCEPTOR])
        self.dialer.into = back
        self.acceptor = End(ACCEPTOR, self.core(ACCEPTOR), out=back, into=self.dialer.out)
        self.counts["channels begun"] += 1
        self.resend(self.acceptor)
        return self.acceptor

    def restart(self) -> None:
        """The acceptor's process is killed and started again: its memory and its sockets are lost."""
        if self.acceptor is None and self.stored_end is None:
            return
        self.acceptor = self.stored_end = None
        self.counts["restarts"] += 1
        for socket in self.sockets:
            socket.ways[DIALER].cut()
            socket.ways[ACCEPTOR].cut(keep=PACKETS_MAX)

    def expire(self) -> None:
        acceptor = self.living(ACCEPTOR)
        if acceptor is not None and acceptor.socket is None:
            self.end(ACCEPTOR, EndCode.EXPIRED)
            self.counts["expiries"] += 1
