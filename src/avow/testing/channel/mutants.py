"""The list of deliberate mistakes, and the hunt for each: the proof that the machine sees what matters.

Each breaks one rule at both ends and must be noticed by a random walk within a bounded number of seeds. One that
survives means that the machine is blind there, or that the rule is not needed. Nothing of this is reachable from a
channel.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from avow.channel.incoming import Incoming
from avow.channel.outgoing import Outgoing
from avow.channel.protocol import Core
from avow.testing.channel import mistakes
from avow.testing.channel.walk import walk
from avow.testing.hunt import Caught

SEEDS_MAX: Final = 2_000
STRATEGY: Final = "channel"


class Mutant(Struct, frozen=True):
    """`listed`: named by the design; the others were added."""

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
        "everything pending, taken as new",
        _receiving(mistakes.TakeAgain, _sending(mistakes.ResendAll)),
        True,
    ),
    Mutant("commit not resent", "commits that a lost socket carried", _sending(mistakes.CommitNotResent), True),
    Mutant("lost ack not repeated", "the ack in a Hello is not heard", mistakes.LostAckNotRepeated, True),
    Mutant("ack of a superseded commit ignored", "only the newest counts", _sending(mistakes.SupersededIgnored), True),
    Mutant("garbage collection at commit", "instead of at its ack", _sending(mistakes.ReleasedAtCommit), True),
    Mutant("ack releases to the newest commit", "not to its own upto", _sending(mistakes.ReleasedToNewest), True),
    Mutant("commit overtakes data", "it leaves before what it covers", _sending(mistakes.Overtaking), True),
    Mutant("suspend without commit", "nothing outstanding covers everything", mistakes.SuspendWithoutCommit, True),
    Mutant("never resumes", "whatever is acknowledged", mistakes.NeverResumes, True),
    Mutant(
        "failure returns only the buffer", "what was given is not handed back", _sending(mistakes.OnlyTheBuffer), True
    ),
    Mutant("old socket not fenced", "late packets are heard", mistakes.NotFenced, True),
    Mutant("stale Hello accepted", "an older generation takes over", mistakes.StaleHelloAccepted, True),
    Mutant("ack while down lost", "there was no socket to tell it on", mistakes.AckWhileDownLost, True),
    Mutant("delivery stops while an ack is pending", "messages wait for it", mistakes.DeliveryStops, True),
    Mutant(
        "empty commit swallowed", "it covers nothing new, so it is not sent", _sending(mistakes.EmptySwallowed), True
    ),
    Mutant(
        "commit blocked by suspension",
        "a suspended sender keeps it back",
        _sending(mistakes.HeldWhileSuspended, mistakes.CommitBlocked),
        True,
    ),
    Mutant("wrong fates: unknown is unsent", "what left may have arrived", _sending(mistakes.UnknownIsUnsent), True),
    Mutant("wrong fates: unknown is delivered", "what left may be lost", _sending(mistakes.UnknownIsDelivered), True),
    Mutant("wrong fates: the last word unheard", "all that left is unknown", _sending(mistakes.LastWordUnheard), True),
    Mutant("wrong fates: forgotten is unsent", "an end that knows nothing is believed", mistakes.ForgottenIsUnsent),
    Mutant("acks behind data", "they do not overtake what waits", mistakes.AcksBehindData),
    Mutant("acks suspended", "two suspended ends wait for each other", mistakes.AcksSuspended),
    Mutant("ack while greeting lost", "it is taken for told", mistakes.AckWhileGreetingLost),
    Mutant("early completion", "an older ack completes newer waiters", mistakes.EarlyCompletion),
    Mutant("released too late", "commits complete and nothing is released", _sending(mistakes.Unreleased)),
    Mutant("received is acknowledged", "a Hello releases what arrived", _sending(mistakes.ReceivedIsAcknowledged)),
    Mutant("counted twice", "the first of a resumed socket", _receiving(mistakes.CountedTwice, mistakes.CountingTwice)),
    Mutant("commit ids reused", "after a resume they go on from the other end's", _sending(mistakes.IdsReused)),
    Mutant("upto not checked", "a commit is taken wherever it comes", _receiving(mistakes.UncheckedUpto)),
    Mutant("ack believed", "of a commit that a Hello said was not there", _sending(mistakes.AckBelieved)),
    Mutant("large joins others", "a packet grows beyond its maximum", _sending(mistakes.LargeJoinsOthers)),
    Mutant("resent in part", "until the limit is reached", mistakes.ResentInPart),
    Mutant("resent under new ids", "another commit covers it on the new channel", mistakes.RenumberedResend),
    Mutant("resumes at once", "not at the low mark", mistakes.ResumesAtOnce),
    Mutant("bytes ignored", "only messages count towards the limit", mistakes.BytesIgnored),
    Mutant("one more", "suspended a message too late", mistakes.OneMore),
    Mutant("cap of the other end ignored", "the limit is one's own", mistakes.CapOfTheOtherIgnored),
    Mutant("cap not enforced", "memory is the sender's to fill", _receiving(mistakes.CapNotEnforced)),
    Mutant("cap too late", "what was cut off is told as received", mistakes.CapTooLate),
    Mutant("any token taken", "whoever knows the channel resumes it", mistakes.AnyTokenTaken),
    Mutant("old loss counts", "a replaced socket takes the new one down", mistakes.OldLossCounts),
    Mutant("always fresh", "a forgotten channel begins anew", mistakes.AlwaysFresh),
    Mutant("never fresh", "no channel begins", mistakes.NeverFresh),
    Mutant("fenced is the end", "a socket of the past ends the channel", mistakes.FencedIsTheEnd),
    Mutant("any position possible", "a Hello is believed whatever it says", _sending(mistakes.AnyPositionPossible)),
    Mutant("last ack unheard", "what an End acknowledged is handed back", mistakes.LastAckUnheard),
    Mutant("handed back twice", "an End after the end", mistakes.HandedBackTwice),
    Mutant(
        "handed back without commits",
        "what covered a message is forgotten",
        _sending(mistakes.AutomaticCommitForgotten),
    ),
)


def hunt_mutant(name: str, *, first_seed: int = 0) -> Caught:
    """Walks until one notices it. By name, because a mutated class does not travel between processes."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    for tried in range(SEEDS_MAX):
        walked = walk(first_seed + tried, core_class=mutant.core_class)
        if walked.violation:
            return Caught(mutant.name, mutant.what, STRATEGY, mutant.listed, tried + 1, walked.violation)
    return Caught(mutant.name, mutant.what, STRATEGY, mutant.listed, 0, "")
