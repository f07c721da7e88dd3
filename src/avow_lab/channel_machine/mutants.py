"""The list of deliberate mistakes, and the hunt for each.

Each breaks one rule at both ends, and a random walk must catch it within a bounded number of seeds. A mistake that
survives means that the machine misses it, or that the rule is not needed. A channel never imports this.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from avow.channel.protocol.core import Core
from avow.channel.protocol.incoming import Incoming
from avow.channel.protocol.outgoing import Outgoing
from avow_lab.channel_machine import mistakes
from avow_lab.channel_machine.walk import walk
from avow_lab.mutations.hunt import Caught

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
    Mutant(
        "resume one too few", "the first message after a resume is left out", _sending(mistakes.ResumeOneTooFew), True
    ),
    Mutant(
        "resend without dedup",
        "all pending messages are sent, and accepted as new",
        _receiving(mistakes.TakeAgain, _sending(mistakes.ResendAll)),
        True,
    ),
    Mutant(
        "commit not resent", "a commit on a lost socket is not sent again", _sending(mistakes.CommitNotResent), True
    ),
    Mutant("lost ack not repeated", "the ack in a Hello is ignored", mistakes.LostAckNotRepeated, True),
    Mutant("ack of a superseded commit ignored", "only the newest counts", _sending(mistakes.SupersededIgnored), True),
    Mutant("garbage collection at commit", "instead of at its ack", _sending(mistakes.ReleasedAtCommit), True),
    Mutant("ack releases to the newest commit", "not to its own upto", _sending(mistakes.ReleasedToNewest), True),
    Mutant("commit overtakes data", "it leaves before what it covers", _sending(mistakes.Overtaking), True),
    Mutant("suspend without commit", "nothing outstanding covers everything", mistakes.SuspendWithoutCommit, True),
    Mutant("never resumes", "even when everything is acknowledged", mistakes.NeverResumes, True),
    Mutant(
        "failure returns only the buffer",
        "messages given to a socket are not handed back",
        _sending(mistakes.OnlyTheBuffer),
        True,
    ),
    Mutant("old socket not fenced", "late packets are accepted", mistakes.NotFenced, True),
    Mutant("stale Hello accepted", "an older generation takes over", mistakes.StaleHelloAccepted, True),
    Mutant("ack while down lost", "an ack without a socket is dropped", mistakes.AckWhileDownLost, True),
    Mutant("delivery stops while an ack is pending", "messages wait for it", mistakes.DeliveryStops, True),
    Mutant(
        "empty commit swallowed", "it covers nothing new, so it is not sent", _sending(mistakes.EmptySwallowed), True
    ),
    Mutant(
        "commit blocked by suspension",
        "a suspended sender does not send it",
        _sending(mistakes.HeldWhileSuspended, mistakes.CommitBlocked),
        True,
    ),
    Mutant("wrong fates: unknown is unsent", "what left may have arrived", _sending(mistakes.UnknownIsUnsent), True),
    Mutant("wrong fates: unknown is delivered", "what left may be lost", _sending(mistakes.UnknownIsDelivered), True),
    Mutant("wrong fates: the last word unheard", "all that left is unknown", _sending(mistakes.LastWordUnheard), True),
    Mutant(
        "wrong fates: forgotten is unsent",
        "an end that forgot the channel counts as one that received nothing",
        mistakes.ForgottenIsUnsent,
    ),
    Mutant("acks behind data", "they wait behind data", mistakes.AcksBehindData),
    Mutant("acks suspended", "two suspended ends wait for each other", mistakes.AcksSuspended),
    Mutant("ack while greeting lost", "an ack between the Hellos counts as sent", mistakes.AckWhileGreetingLost),
    Mutant("early completion", "an older ack completes newer waiters", mistakes.EarlyCompletion),
    Mutant("released too late", "commits complete and nothing is released", _sending(mistakes.Unreleased)),
    Mutant("received is acknowledged", "a Hello releases what arrived", _sending(mistakes.ReceivedIsAcknowledged)),
    Mutant(
        "counted twice",
        "the first message on a resumed socket",
        _receiving(mistakes.CountedTwice, mistakes.CountingTwice),
    ),
    Mutant("commit ids reused", "after a resume they continue from the other end's", _sending(mistakes.IdsReused)),
    Mutant("upto not checked", "a commit is accepted at any position", _receiving(mistakes.UncheckedUpto)),
    Mutant(
        "ack believed", "an ack is accepted of a commit that a Hello said was missing", _sending(mistakes.AckBelieved)
    ),
    Mutant("large joins others", "a packet grows beyond its maximum", _sending(mistakes.LargeJoinsOthers)),
    Mutant("resent in part", "until the limit is reached", mistakes.ResentInPart),
    Mutant("resent under new ids", "another commit covers a message on the new channel", mistakes.RenumberedResend),
    Mutant("resumes at once", "not at the low mark", mistakes.ResumesAtOnce),
    Mutant("bytes ignored", "only messages count towards the limit", mistakes.BytesIgnored),
    Mutant("one more", "suspended a message too late", mistakes.OneMore),
    Mutant("cap of the other end ignored", "only the own limit counts", mistakes.CapOfTheOtherIgnored),
    Mutant("cap not enforced", "the sender may fill the memory", _receiving(mistakes.CapNotEnforced)),
    Mutant("cap too late", "messages over the cap are reported as received", mistakes.CapTooLate),
    Mutant("any token taken", "a client without the token resumes the channel", mistakes.AnyTokenTaken),
    Mutant("old loss counts", "the loss of a replaced socket closes the new one", mistakes.OldLossCounts),
    Mutant("always fresh", "a forgotten channel begins anew", mistakes.AlwaysFresh),
    Mutant("never fresh", "no channel begins", mistakes.NeverFresh),
    Mutant("fenced is the end", "a replaced socket ends the channel", mistakes.FencedIsTheEnd),
    Mutant("any position possible", "any state in a Hello is accepted", _sending(mistakes.AnyPositionPossible)),
    Mutant("last ack unheard", "messages that an End acknowledged are handed back", mistakes.LastAckUnheard),
    Mutant("handed back twice", "an End after the end", mistakes.HandedBackTwice),
    Mutant(
        "handed back without commits",
        "the commit that covered a message is forgotten",
        _sending(mistakes.AutomaticCommitForgotten),
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
