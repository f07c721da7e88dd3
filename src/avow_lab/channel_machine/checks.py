"""The checks of the channel after every step, of every packet, and when nothing is left to send.

    order        a message arrived twice, too early, changed or not at all
    commit       a commit has a wrong id, or did not arrive directly after what it covers
    ack          a waiter completed without an acknowledgement, or an acknowledgement waited for data
    pending      the pending messages are not those sent after the last commit known to be acknowledged
    suspended    suspended too early, too late, too long, or without a commit that covers everything
    bounds       more is pending than the limit, or more was received than the cap allows
    hello        a Hello does not have the state of its end, or something was sent before it
    fenced       a packet on a replaced socket was accepted, or changed something
    handed back  an end failed and did not give back exactly its pending messages, in order, once
    fate         a pending message has a wrong fate
    ended        an end failed without a reason
    misuse       an application error was not refused, or changed something
    misbehaving  the other end's protocol error did not end the channel, or not with that reason
    begun anew   a channel was opened a second time although packets of the first had arrived
    no progress  on a working socket something never arrives, or a sender waits for ever

The two ends are compared with the model, never with each other.
"""

from __future__ import annotations

from typing import Final

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Ended
from avow.channel.protocol.frames import Ack, Commit, Data, Frame, Hello, commit_bytes
from avow.channel.protocol.frames import End as LastWord
from avow_lab.channel_machine.model import Direction
from avow_lab.channel_machine.sockets import Socket
from avow_lab.checkers.two_phase import Violation

COMMIT_SIZE_BYTES: Final = len(commit_bytes(0, 0))


class End:
    """One end: its core, the direction it sends in, the direction it receives from, and its current socket."""

    def __init__(self, name: str, core: Core, *, out: Direction, into: Direction) -> None:
        self.name, self.core, self.out, self.into = name, core, out, into
        self.socket: Socket | None = None
        self.over: Ended | None = None
        self.connected = False  # it has received a Hello
        self.announced = False  # as suspended, by events
        self.may_end: set[int] = set()  # codes with which it may end by itself now


def check_end(end: End) -> None:
    """Checks that the core agrees with the model, and that both keep their bounds."""
    core, out, into = end.core, end.out, end.into
    if end.over is not None:
        return
    numbers = core.statistics()
    if core.non_acked_message_count != out.count or numbers["pending_bytes"] != out.size_bytes:
        raise Violation(
            "pending", f"the {end.name} has {core.non_acked_message_count} messages pending, not {out.count}"
        )
    if not core.suspended == out.suspended == end.announced:
        raise Violation(
            "suspended", f"the {end.name} is {core.suspended}, announced {end.announced}, and should be {out.suspended}"
        )
    if core.suspended and not (out.issued > out.known_acked and out.uptos[out.issued] == len(out.values)):
        raise Violation("suspended", f"no outstanding commit covers everything the {end.name} has sent")
    if (numbers["received_to"], numbers["commits_received_to"]) != (into.received, into.last_delivered):
        raise Violation("order", f"the {end.name} has other counts than its application got")
    if numbers["acknowledged"] != into.acked:
        raise Violation("ack", f"the {end.name} forgot an acknowledgement: {numbers['acknowledged']}, not {into.acked}")
    check_bounds(end)


def check_bounds(end: End) -> None:
    out = end.out
    before_last = out.size_bytes - (out.sizes[-1] - out.sizes[-2]) if out.count else 0
    if out.count > out.limit_count or before_last >= out.limit_bytes:
        raise Violation("bounds", f"the {end.name} has {out.count} messages, {out.size_bytes} bytes pending")
    count, size_bytes = end.into.uncovered
    if count > end.out.share.cap_count or size_bytes > end.out.share.cap_bytes:
        raise Violation(
            "bounds", f"the {end.name} took {count} messages, {size_bytes} bytes beyond its last acknowledgement"
        )


def check_written(end: End, socket: Socket, frames: list[Frame]) -> None:
    """A Hello comes first, once, with the right state; then an acknowledgement that is due.

    An End is alone in its packet and reports the state of its end.
    """
    into, first = end.into, frames[0]
    if isinstance(first, LastWord):
        if (first.received_to, first.acked) != (into.received, into.acked):
            raise Violation("hello", f"the {end.name} reported a wrong state at its end: {first}")
        return
    if isinstance(first, Hello) == socket.greeted[end.name]:
        raise Violation("hello", f"the {end.name} began a packet with {first}; greeted: {socket.greeted[end.name]}")
    if isinstance(first, Hello):
        stands = (first.received_to, first.commits_received_to, first.acked)
        if stands != (into.received, into.last_delivered, into.acked):
            raise Violation("hello", f"the {end.name} reports a wrong state: {stands}")
        socket.greeted[end.name] = True
    elif into.acked > socket.acks_sent[end.name] and first != Ack(into.acked):
        raise Violation("ack", f"commit {into.acked} was acknowledged, and the {end.name} began with {first}")
    socket.acks_sent[end.name] = into.acked


def check_size(end: End, frames: list[Frame], size_bytes: int) -> None:
    """A packet is closed at its size: nothing but a commit may go beyond, unless it is alone."""
    sizes = [len(value) + 4 for frame in frames if isinstance(frame, Data) for value in frame.values]
    commits = sum(isinstance(frame, Commit) for frame in frames)
    size = sum(sizes) + COMMIT_SIZE_BYTES * (commits - isinstance(frames[-1], Commit))
    if size > size_bytes and len(sizes) + commits - isinstance(frames[-1], Commit) > 1:
        raise Violation("bounds", f"the {end.name} put {size} bytes into a packet of {size_bytes}")


def check_handed_back(end: End, ended: Ended) -> None:
    """Pending messages are returned completely, in order and once, each with the most precise correct fate."""
    if end.over is not None:
        raise Violation("handed back", f"the {end.name} ended twice")
    expected = end.out.pending()
    if [(one.number, bytes(one.value)) for one in ended.pending] != [(one.number, one.value) for one in expected]:
        raise Violation(
            "handed back", f"{[one.number for one in ended.pending]} of the {end.name}, not what is pending"
        )
    for reported, right in zip(ended.pending, expected, strict=True):
        if reported.commit != right.commit:
            raise Violation(
                "handed back", f"message {reported.number} is of commit {right.commit}, not {reported.commit}"
            )
        arrived = reported.number <= end.out.received
        if (
            reported.fate != right.fate
            or (reported.fate == "delivered" and not arrived)
            or (reported.fate == "unsent" and arrived)
        ):
            raise Violation(
                "fate",
                f"message {reported.number} of the {end.name} has fate {reported.fate}, not {right.fate}; "
                f"arrived: {arrived}",
            )
    end.out.never = next((one.number for one in expected if one.fate == "unsent"), None)


def check_quiet(end: End) -> None:
    """Both ends are up on a good socket with nothing left to send: everything has arrived."""
    out = end.out
    if out.received != len(out.values):
        raise Violation("no progress", f"{out.received} of {len(out.values)} messages of the {end.name} have arrived")
    if out.last_delivered != out.issued:
        raise Violation("no progress", f"commit {out.issued} of the {end.name} has not arrived")
    if out.known_acked != out.acked:
        raise Violation("no progress", f"the {end.name} got no acknowledgement of commit {out.acked}")


def check_finished(end: End) -> None:
    """After everything was committed and acknowledged."""
    if end.out.waiting or end.out.count or end.core.non_acked_message_count:
        raise Violation("no progress", f"the {end.name} still waits for {sorted(end.out.waiting)}")
    if end.core.suspended:
        raise Violation("no progress", f"the {end.name} never resumes")
