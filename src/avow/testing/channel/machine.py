"""Two ends of a channel, moved one step at a time by whoever calls the methods: Hypothesis, or a seeded walk.

    application  send, commit, ack, misuse, end ──► dialer ══ sockets ══ acceptor ◄── application
    weather      dial, write, deliver, cut, notice, notice_old
    acceptor     restart: it has forgotten every channel    expire: the window is over; a tombstone answers from now on
    mischief     forge, forge_hello, fence: what no end of this channel would say (see `forging`)
    aims         flow: a good socket carries everything     reopen: a new channel after a failure
                 settle: at the end of every walk everything arrives, is acknowledged, and nobody waits

`stage` has what comes out of the cores, `moves` what goes in; `model` and `checks` say whether it is right.
"""

from __future__ import annotations

from avow.errors import ChannelFailed
from avow.testing.channel.checks import End, check_quiet, check_settled
from avow.testing.channel.forging import Forging
from avow.testing.channel.sockets import ACCEPTOR, DIALER, PACKETS_MAX, Socket
from avow.testing.ledger import Violation


class Machine(Forging):
    def flow(self) -> None:
        """If the current socket is good: everything there is to say is said. No application acknowledges anything."""
        socket = self.dialer.socket
        if self.living(DIALER) is None or socket is None or not socket.good or socket.refused:
            return
        self._pump(socket)
        if self._both_up():
            self.counts["quiet"] += 1
            self.counts["both suspended"] += all(end.out.suspended for end in self._both())
            for end in self._both():
                check_quiet(end)

    def _pump(self, socket: Socket) -> None:
        index = self.sockets.index(socket)
        for _ in range(PACKETS_MAX):
            for name in (DIALER, ACCEPTOR):
                self.write(name, packets=2)
                self.deliver(index, name, packets=PACKETS_MAX)
            if socket.empty and not any(end.core.has_output for end in self._both() if end.socket is socket):
                return
        raise Violation("no progress", "the two ends talk without an end")

    def _both(self) -> list[End]:
        return [end for end in (self.living(DIALER), self.living(ACCEPTOR)) if end is not None]

    def _both_up(self) -> bool:
        both = self._both()
        return len(both) == 2 and both[0].socket is not None and both[0].socket is both[1].socket

    def reopen(self) -> None:
        """A new channel, and what the old one handed back is sent again on it."""
        if self.dialer.over is None:
            return
        self.notice(ACCEPTOR)
        self.expire()
        try:
            self.dialer.core.send(b"too late")
        except ChannelFailed:
            self.open()
            return
        raise Violation("misuse", "a message was sent on a channel that is over")

    def settle(self) -> None:
        """One good socket, and then all acknowledgements: everything arrives, everybody goes on or has failed whole."""
        for _ in range(3):
            self.dial()
            if self.dialer.socket is not None:
                self._pump(self.dialer.socket)
            if self._both_up():
                self._settle_up()
                return
            if self.dialer.over is None:
                raise Violation("no progress", f"the dialer is {self.dialer.core.link} on a good socket")
            self.reopen()
        raise Violation("no progress", "three new channels failed")

    def _settle_up(self) -> None:
        self.flow()
        self._ack_all()
        for end in self._both():
            if end.core.suspended:
                raise Violation("no progress", f"everything is acknowledged, and the {end.name} does not resume")
            self.commit(end.name)
        self.flow()
        self._ack_all()
        for end in self._both():
            check_settled(end)

    def _ack_all(self) -> None:
        for end in self._both():
            self.ack(end.name, "newest")
        self.flow()
