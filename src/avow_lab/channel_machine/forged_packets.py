"""Packets that no end of this channel would send. Each must end the channel with its reason, or change nothing.

A forged packet arrives on a socket that is up, so it tests the checks of the numbers in it: an end that trusted it
would deliver a message twice, out of order or not at all, release messages that did not arrive, or fill its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from avow import limits
from avow.channel.protocol.frames import End as LastWord
from avow.channel.protocol.frames import (
    EndCode,
    Hello,
    ack_bytes,
    commit_bytes,
    data_parts,
    end_bytes,
    hello_bytes,
)
from avow.channel.protocol.states import Link
from avow_lab.channel_machine.checks import End
from avow_lab.channel_machine.moves import Moves
from avow_lab.channel_machine.sockets import ACCEPTOR, DIALER, Socket
from avow_lab.checkers.two_phase import Violation


def _data(first: int, count: int = 1) -> bytes:
    return b"".join(data_parts(first, [b""] * count))


def _flood(end: End) -> bytes:
    count, _ = end.into.uncovered
    return _data(end.into.received + 1, end.out.share.cap_count - count + 1)


PACKETS: Final[Mapping[str, Callable[[End], bytes]]] = {
    "a gap": lambda end: _data(end.into.received + 2),
    "a message again": lambda end: _data(end.into.received),
    "a commit of what did not come": lambda end: commit_bytes(end.into.last_delivered + 1, end.into.received + 1),
    "a commit again": lambda end: commit_bytes(end.into.last_delivered, end.into.received),
    "an ack of what was not sent": lambda end: ack_bytes(end.out.last_commit + 1),
    "an ack of what it lacks": lambda end: ack_bytes(end.socket.commits[end.name] + 1 if end.socket else 0),
    "a second Hello": lambda _end: hello_bytes(Hello(bytes(16), bytes(16), 1)),
    "an unknown kind": lambda _end: b"\xff",
    "half a frame": lambda end: _data(end.into.received + 1)[:-1],
    "more than the cap": _flood,
}

STRANGERS: Final = ("another token", "another channel", "a generation of the past")
IMPOSSIBLE: Final[Mapping[str, Callable[[End, Hello], Hello]]] = {
    "messages that were not sent": lambda end, true: replace(true, received_to=end.out.given_to + 1),
    "messages are missing": lambda end, true: replace(true, received_to=end.out.released - 1),
    "commits that were not sent": lambda end, true: replace(true, commits_received_to=end.out.last_commit + 1),
    "acks that were taken back": lambda end, true: replace(true, acked=end.out.known_acked - 1),
    "acks of commits it lacks": lambda _end, true: replace(true, acked=true.commits_received_to + 1),
    "a small cap": lambda _end, true: replace(true, cap_count=limits.CHANNEL_CAP_COUNT_MIN - 1),
}


class Forging(Moves):
    def forge(self, name: str, what: str) -> None:
        end = self.living(name)
        if end is None or end.socket is None or end.core.link is not Link.UP:
            return
        code = EndCode.CAP_EXCEEDED if what == "more than the cap" else EndCode.PROTOCOL
        end.may_end = {code}
        end.core.received(end.socket.generation, PACKETS[what](end))
        self._must_be_over(end, code, what)

    def forge_hello(self, what: str) -> None:
        """On the forger's own socket. With the token it may end a channel; without it, it has no effect."""
        acceptor = self.living(ACCEPTOR)
        if acceptor is None:
            return
        out = acceptor.out
        if (what == "messages are missing" and not out.released) or (
            what == "acks that were taken back" and out.known_acked <= out.share.last_commit + 1
        ):
            return
        true = self._true_hello()
        if what in STRANGERS:
            self._stranger(acceptor, what, true)
            return
        code = EndCode.PROTOCOL if what == "a small cap" else EndCode.IMPOSSIBLE
        acceptor.may_end = {code}
        acceptor.core.greeted(IMPOSSIBLE[what](acceptor, true))
        acceptor.socket = Socket(0, generation=true.generation)
        self._must_be_over(acceptor, code, what)

    def _true_hello(self) -> Hello:
        """The Hello that the dialer would send on its next socket."""
        into = self.dialer.into
        generation = int(self.dialer.core.statistics()["generation"]) + 1
        return Hello(
            self.channel,
            self.token,
            generation,
            into.received,
            into.last_delivered,
            into.acked,
            limits.CHANNEL_CAP_COUNT_MIN,
            limits.CHANNEL_CAP_SIZE_BYTES_MIN,
        )

    def _stranger(self, acceptor: End, what: str, hello: Hello) -> None:
        wrong = {"channel": bytes(16)} if what == "another channel" else {"token": bytes(16)}
        if what == "a generation of the past":
            hello = replace(hello, generation=int(acceptor.core.statistics()["generation"]))
        else:
            hello = replace(hello, **wrong)
        before = acceptor.core.statistics()
        if acceptor.core.greeted(hello) or acceptor.core.statistics() != before:
            raise Violation("fenced", f"a Hello with {what} was accepted")
        self.counts["strangers"] += 1
        self.checked(acceptor)

    def fence(self) -> None:
        """The dialer learns that its socket was replaced: it loses the socket and nothing else."""
        dialer = self.living(DIALER)
        if dialer is None or dialer.socket is None:
            return
        socket, dialer.socket = dialer.socket, None
        dialer.core.received(socket.generation, end_bytes(LastWord(EndCode.FENCED)))
        if dialer.core.link is not Link.DOWN:
            raise Violation("fenced", f"a fenced socket took the dialer to {dialer.core.link}")
        self.checked(dialer)

    def _must_be_over(self, end: End, code: EndCode, what: str) -> None:
        self.checked(end)
        if end.over is None or end.over.code != code:
            raise Violation("misbehaving", f"{what}: the {end.name} went on, or ended otherwise: {end.over}")
        self.counts["forgeries"] += 1
