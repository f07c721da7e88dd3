"""Deliberate mistakes in a channel's core, each in the method with the rule that it breaks, and the hunt for each.

Some are listed in the design, some were once made in the code. A Core sends with Outgoing and receives with Incoming;
where a mistake of these needs a change of the Core too, that is a separate class.

Each breaks one rule at both ends, and a random walk must catch it within a bounded number of seeds. A mistake that
survives means that the machine misses it, or that the rule is not needed. A channel never imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from avow import limits
from avow.channel.protocol.core import Core
from avow.channel.protocol.events import CommitAcked, Ended, Event, Fate, Messages, Pending
from avow.channel.protocol.frames import Buffer, Data, End, EndCode, Hello, ack_bytes, commit_bytes
from avow.channel.protocol.incoming import Incoming
from avow.channel.protocol.outgoing import Outgoing
from avow.channel.protocol.states import Link
from avow_lab.channel_machine.walk import walk
from avow_lab.mutations.hunt import Caught

# ------------------------------------------------------------------ resuming


class ResumeOneTooFew(Outgoing):
    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(received_to, commits_received_to)
        self.given_to = min(received_to + 1, self.sent_to)


class ResendAll(Outgoing):
    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(received_to, commits_received_to)
        self.given_to = self.released_to


class TakeAgain(Incoming):
    def data(self, first: int, count: int, size_bytes: int) -> str:
        self.received_to = first - 1
        return super().data(first, count, size_bytes)


class CommitNotResent(Outgoing):
    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(received_to, commits_received_to)
        self.commits_given_to = self.commits_ever_given_to


class LostAckNotRepeated(Core):
    def _handle_hello(self, hello: Hello) -> None:
        super()._handle_hello(replace(hello, acked=self.out.acked))


class ReceivedIsAcknowledged(Outgoing):
    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(received_to, commits_received_to)
        self._release(received_to)


class IdsReused(Outgoing):
    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(received_to, commits_received_to)
        self.last_commit = commits_received_to or self.last_commit


class CountedTwice(Incoming):
    """The first message on a socket is counted twice."""

    fresh = True

    def data(self, first: int, count: int, size_bytes: int) -> str:
        wrong = super().data(first, count, size_bytes)
        self.received_to += 1 if self.fresh and not wrong else 0
        self.fresh = False
        return wrong


class CountingTwice(Core):
    def _handle_hello(self, hello: Hello) -> None:
        super()._handle_hello(hello)
        self.incoming.fresh = self._greeted and self.generation > 1  # type: ignore[attr-defined]


# ------------------------------------------------------------------ commits and acknowledgements


class SupersededIgnored(Outgoing):
    def ack(self, commit_id: int) -> bool:
        return super().ack(commit_id) if commit_id >= self.last_commit else commit_id <= self.commits_given_to


class ReleasedAtCommit(Outgoing):
    def commit(self) -> int:
        commit_id = super().commit()
        self._release(self.given_to)
        return commit_id


class ReleasedToNewest(Outgoing):
    def ack(self, commit_id: int) -> bool:
        known = super().ack(commit_id)
        if known and self._runs:
            self._release(max(self.released_to, min(self._runs[-1].upto, self.given_to)))
        return known


class Overtaking(Outgoing):
    """A commit is sent at once, and covers only what was sent."""

    def next_frames(self, size_bytes: int) -> list[Buffer]:
        parts: list[Buffer] = []
        if self._runs and self.commits_given_to < self.last_commit:
            parts.append(commit_bytes(self.last_commit, self.given_to))
            self.commits_given_to = self.commits_ever_given_to = self.last_commit
        return parts + super().next_frames(size_bytes)


class EmptySwallowed(Outgoing):
    def _give_commit(self, parts: list[Buffer], at: int) -> int:
        given = super()._give_commit(parts, at)
        if self._runs[at].upto == (self._runs[at - 1].upto if at else self.released_to):
            parts.pop()
        return given


class HeldWhileSuspended(Outgoing):
    suspended = False

    def _give_commit(self, parts: list[Buffer], at: int) -> int:
        return 0 if self.suspended else super()._give_commit(parts, at)


class CommitBlocked(Core):
    def packet(self, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Buffer]:
        self.out.suspended = self.suspended  # type: ignore[attr-defined]
        return super().packet(size_bytes)


class AckWhileDownLost(Core):
    def ack_commit(self, commit_id: int) -> None:
        if self.link is not Link.DOWN or not self.incoming.acked < commit_id <= self.incoming.commits_received_to:
            super().ack_commit(commit_id)


class AckWhileGreetingLost(Core):
    """An acknowledgement between the two Hellos counts as sent."""

    def _handle_hello(self, hello: Hello) -> None:
        super()._handle_hello(hello)
        self.incoming.acked_given = self.incoming.acked


class AcksBehindData(Core):
    def packet(self, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Buffer]:
        given, self.incoming.acked_given = self.incoming.acked_given, self.incoming.acked
        hello_due = self._hello_due
        parts = super().packet(size_bytes)
        if self.link is Link.UP and not hello_due and given < self.incoming.acked:
            parts.append(ack_bytes(self.incoming.acked))
        return parts


class AcksSuspended(Core):
    """A suspended end sends nothing at all, so two suspended ends wait for ever."""

    @property
    def has_output(self) -> bool:
        quiet = self.suspended and not self._hello_due and not self.out.waiting
        return super().has_output and not quiet

    def packet(self, size_bytes: int = limits.CHANNEL_PACKET_SIZE_BYTES) -> list[Buffer]:
        return super().packet(size_bytes) if self.has_output else []


class EarlyCompletion(Core):
    """The ack of an older commit completes the waiters of newer ones."""

    def take_events(self) -> list[Event]:
        newest = self.out.commits_given_to
        return [CommitAcked(newest) if isinstance(one, CommitAcked) else one for one in super().take_events()]


class AckBelieved(Outgoing):
    """Accepts the acknowledgement of a commit that was missing by the other end's Hello."""

    def ack(self, commit_id: int) -> bool:
        given, self.commits_given_to = self.commits_given_to, self.commits_ever_given_to
        known = super().ack(commit_id)
        self.commits_given_to = given
        return known


class Unreleased(Outgoing):
    """Commits complete, and what they cover stays pending."""

    def _release(self, upto: int) -> None:
        self.received_to = max(self.received_to, upto)


class DeliveryStops(Core):
    """Messages wait until everything before them is acknowledged."""

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._held: list[Event] = []

    def _handle_data(self, frame: Data) -> None:
        super()._handle_data(frame)
        if self.incoming.owing and self._events and isinstance(self._events[-1], Messages):
            self._held.append(self._events.pop())

    def ack_commit(self, commit_id: int) -> None:
        super().ack_commit(commit_id)
        held, self._held = self._held, []
        self._events += held


class UncheckedUpto(Incoming):
    def commit(self, commit_id: int, upto: int) -> str:  # noqa: ARG002
        return super().commit(commit_id, self.received_to)


class ResentInPart(Core):
    def _has_room(self, before_last: Sequence[Pending]) -> bool:  # noqa: ARG002
        return True


class LargeJoinsOthers(Outgoing):
    """A message that does not fit is still added to the packet."""

    def _give_data(self, parts: list[Buffer], stop: int, size_bytes: int) -> int:
        own: list[Buffer] = []
        given = super()._give_data(own, stop, size_bytes)
        parts += own
        return given


class RenumberedResend(Core):
    def resend(self, pending: Sequence[Pending]) -> None:
        super().resend([replace(one, commit=min(one.commit, 1)) for one in pending])


# ------------------------------------------------------------------ the limit


class SuspendWithoutCommit(Core):
    def send(self, value: Buffer) -> int:
        number = self.out.send(value)
        if self._at_limit():
            self._suspend("send to the limit")
        return number


class NeverResumes(Core):
    def _at_low_mark(self) -> bool:
        return False


class ResumesAtOnce(Core):
    def _at_low_mark(self) -> bool:
        return not self._at_limit()


class BytesIgnored(Core):
    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._limit_bytes = limits.CHANNEL_CAP_SIZE_BYTES_MIN

    def _handle_hello(self, hello: Hello) -> None:
        super()._handle_hello(hello)
        self._limit_bytes = limits.CHANNEL_CAP_SIZE_BYTES_MIN


class OneMore(Core):
    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._limit_count += 1


class CapOfTheOtherIgnored(Core):
    def _handle_hello(self, hello: Hello) -> None:
        super()._handle_hello(hello)
        self._limit_count = self._bounds.pending_count


class CapNotEnforced(Incoming):
    def takes(self, count: int, size_bytes: int) -> bool:  # noqa: ARG002
        return True


class CapTooLate(Core):
    """Messages over the cap count as received, and the other end gets that count."""

    def _handle_data(self, frame: Data) -> None:
        if not self.incoming.takes(len(frame.values), 0):
            self.incoming.received_to += len(frame.values)
        super()._handle_data(frame)


# ------------------------------------------------------------------ sockets


class NotFenced(Core):
    def received(self, generation: int, packet: Buffer) -> None:  # noqa: ARG002
        super().received(self.generation, packet)


class StaleHelloAccepted(Core):
    def greeted(self, hello: Hello) -> int:
        if self.matches(hello):
            self.generation = min(self.generation, hello.generation - 1)
        return super().greeted(hello)


class AnyTokenTaken(Core):
    def matches(self, hello: Hello) -> bool:
        return hello.channel == self.channel


class OldLossCounts(Core):
    def lost(self, generation: int) -> None:  # noqa: ARG002
        super().lost(self.generation)


class AlwaysFresh(Core):
    def _hello(self) -> Hello:
        return replace(super()._hello(), fresh=self.initiator)


class NeverFresh(Core):
    def _hello(self) -> Hello:
        return replace(super()._hello(), fresh=False)


class FencedIsTheEnd(Core):
    def _handle_end(self, end: End) -> None:
        super()._handle_end(replace(end, code=EndCode.ABORTED) if end.code == EndCode.FENCED else end)


class AnyPositionPossible(Outgoing):
    def possible(self, received_to: int, commits_received_to: int, acked: int) -> str:  # noqa: ARG002
        return ""

    def resume(self, received_to: int, commits_received_to: int) -> None:
        super().resume(max(self.released_to, min(received_to, self.sent_to)), commits_received_to)

    def ack(self, commit_id: int) -> bool:
        return super().ack(min(commit_id, self.commits_given_to))


# ------------------------------------------------------------------ the end


class OnlyTheBuffer(Outgoing):
    """Messages given to a socket are not handed back."""

    def pending(self) -> list[Pending]:
        return [one for one in super().pending() if one.number > self.given_to]


class UnknownIsUnsent(Outgoing):
    def _fate(self, number: int) -> Fate:
        return "delivered" if number <= self.received_to else "unsent"


class UnknownIsDelivered(Outgoing):
    def _fate(self, number: int) -> Fate:
        fate = super()._fate(number)
        return "delivered" if fate == "unknown" else fate


class LastWordUnheard(Outgoing):
    """Ignores what the other end has reported as received."""

    def _fate(self, number: int) -> Fate:
        return "unknown" if number <= self.ever_given_to else "unsent"


class ForgottenIsUnsent(Core):
    """An end that forgot the channel counts as one that received nothing."""

    def _handle_end(self, end: End) -> None:
        self.out.final = self.out.final or end.code == EndCode.UNKNOWN_CHANNEL
        super()._handle_end(end)


class StrangerBelieved(Core):
    """A process that refuses a socket before its Hello counts as one that received nothing."""

    def _handle_end(self, end: End) -> None:
        out, known = self.out, end.code not in (EndCode.UNKNOWN_CHANNEL, EndCode.FENCED)
        out.final = out.final or (known and out.released_to <= end.received_to <= out.ever_given_to)
        super()._handle_end(end)


class LastAckUnheard(Core):
    """Ignores the acknowledgement in an End: what it covers is handed back."""

    def _handle_end(self, end: End) -> None:
        super()._handle_end(replace(end, acked=0))


class HandedBackTwice(Core):
    """The other end's End after one's own hands everything back again."""

    def received(self, generation: int, packet: Buffer) -> None:
        if self.ended and generation == self.generation:
            self._events.append(Ended(EndCode.ABORTED, "", "", True, self.out.pending()))
        super().received(generation, packet)


class AutomaticCommitForgotten(Outgoing):
    """Messages are handed back without the commit that covered them."""

    def pending(self) -> list[Pending]:
        return [replace(one, commit=0) for one in super().pending()]


# ---------------------------------------------------------------------- the list, and the hunt

SEEDS_MAX: Final = 2_000
STRATEGY: Final = "channel"


class Mutant(Struct, frozen=True):
    """`listed`: listed in the design; the others were added."""

    name: str
    what: str
    core_class: type[Core]
    listed: bool = False


def _sending(outgoing: type[Outgoing], core: type[Core] = Core) -> type[Core]:
    class Sending(core):  # type: ignore[misc, valid-type]
        def __init__(self, *, last_commit: int = 0, **others: Any) -> None:
            super().__init__(last_commit=last_commit, **others)
            self.out = outgoing(last_commit=last_commit)

    return Sending


def _receiving(incoming: type[Incoming], core: type[Core] = Core) -> type[Core]:
    class Receiving(core):  # type: ignore[misc, valid-type]
        def __init__(self, **others: Any) -> None:
            super().__init__(**others)
            self.incoming = incoming(cap_count=self._bounds.cap_count, cap_bytes=self._bounds.cap_bytes)

    return Receiving


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant("resume one too few", "the first message after a resume is left out", _sending(ResumeOneTooFew), True),
    Mutant(
        "resend without dedup",
        "all pending messages are sent, and accepted as new",
        _receiving(TakeAgain, _sending(ResendAll)),
        True,
    ),
    Mutant("commit not resent", "a commit on a lost socket is not sent again", _sending(CommitNotResent), True),
    Mutant("lost ack not repeated", "the ack in a Hello is ignored", LostAckNotRepeated, True),
    Mutant("ack of a superseded commit ignored", "only the newest counts", _sending(SupersededIgnored), True),
    Mutant("garbage collection at commit", "instead of at its ack", _sending(ReleasedAtCommit), True),
    Mutant("ack releases to the newest commit", "not to its own upto", _sending(ReleasedToNewest), True),
    Mutant("commit overtakes data", "it leaves before what it covers", _sending(Overtaking), True),
    Mutant("suspend without commit", "nothing outstanding covers everything", SuspendWithoutCommit, True),
    Mutant("never resumes", "even when everything is acknowledged", NeverResumes, True),
    Mutant(
        "failure returns only the buffer",
        "messages given to a socket are not handed back",
        _sending(OnlyTheBuffer),
        True,
    ),
    Mutant("old socket not fenced", "late packets are accepted", NotFenced, True),
    Mutant("stale Hello accepted", "an older generation takes over", StaleHelloAccepted, True),
    Mutant("ack while down lost", "an ack without a socket is dropped", AckWhileDownLost, True),
    Mutant("delivery stops while an ack is pending", "messages wait for it", DeliveryStops, True),
    Mutant("empty commit swallowed", "it covers nothing new, so it is not sent", _sending(EmptySwallowed), True),
    Mutant(
        "commit blocked by suspension",
        "a suspended sender does not send it",
        _sending(HeldWhileSuspended, CommitBlocked),
        True,
    ),
    Mutant("wrong fates: unknown is unsent", "what left may have arrived", _sending(UnknownIsUnsent), True),
    Mutant("wrong fates: unknown is delivered", "what left may be lost", _sending(UnknownIsDelivered), True),
    Mutant("wrong fates: the last word unheard", "all that left is unknown", _sending(LastWordUnheard), True),
    Mutant(
        "wrong fates: forgotten is unsent",
        "an end that forgot the channel counts as one that received nothing",
        ForgottenIsUnsent,
    ),
    Mutant(
        "wrong fates: a stranger is believed", "an End before the Hello means that nothing arrived", StrangerBelieved
    ),
    Mutant("acks behind data", "they wait behind data", AcksBehindData),
    Mutant("acks suspended", "two suspended ends wait for each other", AcksSuspended),
    Mutant("ack while greeting lost", "an ack between the Hellos counts as sent", AckWhileGreetingLost),
    Mutant("early completion", "an older ack completes newer waiters", EarlyCompletion),
    Mutant("released too late", "commits complete and nothing is released", _sending(Unreleased)),
    Mutant("received is acknowledged", "a Hello releases what arrived", _sending(ReceivedIsAcknowledged)),
    Mutant(
        "counted twice",
        "the first message on a resumed socket",
        _receiving(CountedTwice, CountingTwice),
    ),
    Mutant("commit ids reused", "after a resume they continue from the other end's", _sending(IdsReused)),
    Mutant("upto not checked", "a commit is accepted at any position", _receiving(UncheckedUpto)),
    Mutant("ack believed", "an ack is accepted of a commit that a Hello said was missing", _sending(AckBelieved)),
    Mutant("large joins others", "a packet grows beyond its maximum", _sending(LargeJoinsOthers)),
    Mutant("resent in part", "until the limit is reached", ResentInPart),
    Mutant("resent under new ids", "another commit covers a message on the new channel", RenumberedResend),
    Mutant("resumes at once", "not at the low mark", ResumesAtOnce),
    Mutant("bytes ignored", "only messages count towards the limit", BytesIgnored),
    Mutant("one more", "suspended a message too late", OneMore),
    Mutant("cap of the other end ignored", "only the own limit counts", CapOfTheOtherIgnored),
    Mutant("cap not enforced", "the sender may fill the memory", _receiving(CapNotEnforced)),
    Mutant("cap too late", "messages over the cap are reported as received", CapTooLate),
    Mutant("any token taken", "a client without the token resumes the channel", AnyTokenTaken),
    Mutant("old loss counts", "the loss of a replaced socket closes the new one", OldLossCounts),
    Mutant("always fresh", "a forgotten channel begins anew", AlwaysFresh),
    Mutant("never fresh", "no channel begins", NeverFresh),
    Mutant("fenced is the end", "a replaced socket ends the channel", FencedIsTheEnd),
    Mutant("any position possible", "any state in a Hello is accepted", _sending(AnyPositionPossible)),
    Mutant("last ack unheard", "messages that an End acknowledged are handed back", LastAckUnheard),
    Mutant("handed back twice", "an End after the end", HandedBackTwice),
    Mutant(
        "handed back without commits",
        "the commit that covered a message is forgotten",
        _sending(AutomaticCommitForgotten),
    ),
)


def hunt_mutant(name: str, *, first_seed: int = 0) -> Caught:
    """Runs walks until one catches it. By name, because a mutated class cannot be pickled."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    for tried in range(SEEDS_MAX):
        walked = walk(first_seed + tried, core_class=mutant.core_class)
        if walked.violation:
            return Caught(mutant.name, mutant.what, STRATEGY, mutant.listed, tried + 1, walked.violation)
    return Caught(mutant.name, mutant.what, STRATEGY, mutant.listed, 0, "")
