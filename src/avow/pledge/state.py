"""What happens to a pledge, as a table and the functions that go by it. Pure: time and chance are arguments.

    prepare ─► prepared ──submit, or the checkback says committed──► submitted ──all branches delivered──► succeeded
                  └──the checkback says rolled back──► failed            └──failed for too long──► dead
                                                                          ◄──────────redrive────────┘

Who decides: a *submit* or the *checkback*, nothing else. No count of questions and no age turns a prepared pledge into
anything; an abort only asks the checkback sooner. `stop` is the one order of a person that overrides it.

What is compared when a gid comes again: the steps (urls and payloads, topics not expanded), the protocol, and the
checkback if both requests name one. That is what will be delivered and who decides it; if it differs, it is another
pledge and is refused. Options and custom_data are how it is delivered, and are not compared: dtm's clients send a delay
only with submit, other clients send nulls in one request and defaults in the other, and a service that is deployed anew
with another timeout must be able to finish what it began. Where submit gives an option that prepare did not, it is
taken over (`Progress.options`); a repeated request changes nothing at all.

A verdict may come late: a submit overtook the checkback, a person stopped the pledge, another coordinator finished it.
Late verdicts are moves too, back to the same status: what was delivered is noted, nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import fields, replace

from avow.errors import ContentDiffers, PledgeDecided
from avow.limits import PLEDGE_ATTEMPTS_KEPT
from avow.pledge.record import NEVER_MS, Attempt, BranchProgress, Content, Options, Progress, Status
from avow.pledge.settings import PledgeSettings
from avow.pledge.verdicts import Result

Request: TypeAlias = Literal["prepare", "submit", "abort", "stop", "retry", "redrive"]
Checked: TypeAlias = Literal["committed", "rolled back", "undecided"]
Delivered: TypeAlias = Literal["delivered", "all delivered", "not delivered", "given up"]
Event: TypeAlias = Request | Checked | Delivered
Before: TypeAlias = Status | Literal["new"]

CHECKBACK: Final = -1  # the index of a call that is not a branch's
CHECKBACK_ID: Final = "00"

MOVES: Final[Mapping[tuple[Before, Event], Status]] = {
    ("new", "prepare"): "prepared",
    ("new", "submit"): "submitted",  # a plain message
    ("prepared", "prepare"): "prepared",
    ("prepared", "submit"): "submitted",
    ("prepared", "abort"): "prepared",  # asked at once
    ("prepared", "retry"): "prepared",
    ("prepared", "committed"): "submitted",
    ("prepared", "rolled back"): "failed",
    ("prepared", "undecided"): "prepared",
    ("prepared", "stop"): "failed",
    ("submitted", "submit"): "submitted",  # runs nothing again
    ("submitted", "retry"): "submitted",
    ("submitted", "delivered"): "submitted",
    ("submitted", "not delivered"): "submitted",
    ("submitted", "all delivered"): "succeeded",
    ("submitted", "given up"): "dead",
    ("submitted", "stop"): "failed",
    ("succeeded", "submit"): "succeeded",
    ("failed", "abort"): "failed",
    ("dead", "submit"): "dead",
    ("dead", "redrive"): "submitted",
    ("dead", "stop"): "failed",
    ("dead", "all delivered"): "succeeded",  # the last answer came late
}

_CHECKED: Final[tuple[Checked, ...]] = ("committed", "rolled back", "undecided")
_DELIVERED: Final[tuple[Delivered, ...]] = ("delivered", "all delivered", "not delivered", "given up")
_DECIDED: Final[tuple[Status, ...]] = ("submitted", "succeeded", "failed", "dead")
_OVER: Final[tuple[Status, ...]] = ("succeeded", "failed", "dead")

#: Verdicts that come late. They change no status.
LATE: Final[frozenset[tuple[Before, Event]]] = frozenset(
    {(status, event) for status in _DECIDED for event in _CHECKED}
    | {(status, event) for status in _OVER for event in _DELIVERED if (status, event) not in MOVES}
)


class Heard(Struct, frozen=True, gc=False):
    """The result of one call. `index` is the branch's, or CHECKBACK."""

    index: int
    result: Result
    at_ms: int
    took_ms: int = 0
    text: str = ""


def move(gid: str, status: Before, event: Event) -> Status:
    """Raises PledgeDecided for a request that has no place in the table."""
    after = MOVES.get((status, event))
    if after is None:
        raise PledgeDecided(gid, status=status, event=event)
    return after


# ------------------------------------------------------------------------------------------------- requests


def begun(content: Content, event: Literal["prepare", "submit"], *, now_ms: int, settings: PledgeSettings) -> Progress:
    """The first progress of a gid that was not there."""
    status = move(content.gid, "new", event)
    options = content.options
    not_before_ms = _not_before(options, created_ms=now_ms)
    progress = Progress(
        status=status,
        created_ms=now_ms,
        updated_ms=now_ms,
        next_at_ms=now_ms + _ms(options.timeout_to_fail_s or settings.timeout_to_fail_s),
        branches=(_UNTRIED,) * len(content.branches),
        not_before_ms=not_before_ms,
    )
    return progress if status == "prepared" else _delivering(progress, now_ms=now_ms)


def compare(known: Content, request: Content) -> None:
    """Raises ContentDiffers unless `request` asks for what is known under its gid."""
    differing = "steps" if known.asked() != request.asked() else ""
    if (known.protocol or "http") != (request.protocol or "http"):
        differing = "protocol"
    if known.checkback and request.checkback and known.checkback != request.checkback:
        differing = "checkback"
    if differing:
        raise ContentDiffers(
            f"pledge {known.gid} exists with another content ({differing} differ); nothing was changed. "
            "Use a new gid for another pledge"
        )


def submitted(content: Content, progress: Progress, request: Content, *, now_ms: int) -> Progress:
    """The same progress if it was submitted before: nothing is to be done."""
    status = move(content.gid, progress.status, "submit")
    if progress.status != "prepared":
        return progress
    options = _merged(content.options, request.options)
    progress = replace(
        progress,
        status=status,
        options=None if options == content.options else options,
        not_before_ms=_not_before(options, created_ms=progress.created_ms),
    )
    return _delivering(progress, now_ms=now_ms)


def aborted(content: Content, progress: Progress, *, now_ms: int) -> Progress:
    """Asks for the checkback at once; it decides. The same progress if it failed already."""
    if move(content.gid, progress.status, "abort") == "failed":
        return progress
    return replace(progress, aborting=True, next_at_ms=now_ms, updated_ms=now_ms, interval_s=0.0, held=False)


def stopped(content: Content, progress: Progress, *, now_ms: int, reason: str = "") -> Progress:
    """A person's order: whatever the transaction did, nothing more is delivered."""
    status = move(content.gid, progress.status, "stop")
    return _ended(progress, status, now_ms=now_ms, reason=reason or "stopped by hand")


def retried(content: Content, progress: Progress, *, now_ms: int, settings: PledgeSettings) -> Progress:
    """Due now; but a delay is kept, and a transaction that has its time left is not asked about."""
    status = move(content.gid, progress.status, "retry")
    earliest_ms = progress.not_before_ms
    if status == "prepared":
        patience_s = content.options.timeout_to_fail_s or settings.timeout_to_fail_s
        earliest_ms = 0 if progress.aborting else progress.created_ms + _ms(patience_s)
    next_at_ms = max(now_ms, earliest_ms)
    return replace(progress, next_at_ms=next_at_ms, updated_ms=now_ms, interval_s=0.0, held=False)


def redriven(content: Content, progress: Progress, *, now_ms: int) -> Progress:
    """A dead pledge is submitted again: what is delivered stays delivered, failures are counted anew."""
    status = move(content.gid, progress.status, "redrive")
    return _delivering(replace(progress, status=status, finished_ms=0, reason=""), now_ms=now_ms)


# ------------------------------------------------------------------------------------------------- the work


def due(content: Content, progress: Progress, *, now_ms: int) -> tuple[int, ...]:
    """The calls to make now: indexes of branches, or CHECKBACK."""
    if progress.next_at_ms > now_ms:
        return ()
    if progress.status == "prepared":
        return (CHECKBACK,)
    if progress.status != "submitted" or progress.not_before_ms > now_ms:
        return ()
    concurrent = options_of(content, progress).concurrent
    open_: tuple[int, ...] = ()
    for index, branch in enumerate(progress.branches):
        if branch.status != "succeeded":
            open_ += (index,)
            if not concurrent:
                break
    return open_


def heard(
    content: Content,
    progress: Progress,
    answers: Sequence[Heard],
    *,
    now_ms: int,
    jitter: float,
    settings: PledgeSettings,
) -> Progress:
    """What the answers of one round make of it: one checkback's, or some branches'. `jitter` is in [0, 1).

    The same progress if they came late and nothing is to be noted.
    """
    if answers[0].index == CHECKBACK:
        return _checkback_heard(content, progress, answers[0], now_ms=now_ms, jitter=jitter, settings=settings)
    return _branches_heard(content, progress, answers, now_ms=now_ms, jitter=jitter, settings=settings)


def put_back(
    content: Content, progress: Progress, reason: str, *, now_ms: int, jitter: float, settings: PledgeSettings
) -> Progress:
    """It could not be tried: its endpoint is overcrowded or closed. No attempt is counted, the back-off stays.

    Due at any time up to the longest interval. Whoever puts it back calls it as soon as there is room, so being due
    earlier would only make work, of thousands at a time.
    """
    longest_s = max(settings.backoff_max_s, base_s(content, progress, settings=settings))
    return replace(
        progress, next_at_ms=now_ms + _ms(longest_s * jitter), updated_ms=now_ms, last_error=reason, held=False
    )


def held(progress: Progress, *, until_ms: int) -> Progress:
    """As it is stored while a coordinator works on it: should that one die, others see it due then."""
    return replace(progress, next_at_ms=until_ms, held=True)


def let_go(progress: Progress, *, now_ms: int) -> Progress:
    """Due now, of one whose holder is known to be dead. The same if it is not held."""
    return replace(progress, next_at_ms=now_ms, held=False) if progress.held else progress


def base_s(content: Content, progress: Progress, *, settings: PledgeSettings) -> float:
    """The first interval, as dtm chooses it."""
    options = options_of(content, progress)
    if options.retry_interval_s:
        return options.retry_interval_s
    patience_s = options.timeout_to_fail_s or 0.0
    return patience_s if 0 < patience_s < settings.retry_interval_s else settings.retry_interval_s


def options_of(content: Content, progress: Progress) -> Options:
    return progress.options or content.options


# ------------------------------------------------------------------------------------------------- verdicts


def _checkback_heard(
    content: Content, progress: Progress, answer: Heard, *, now_ms: int, jitter: float, settings: PledgeSettings
) -> Progress:
    verdicts: dict[Result, Checked] = {"SUCCESS": "committed", "FAILURE": "rolled back"}
    event = verdicts.get(answer.result, "undecided")
    if (progress.status, event) in LATE:
        return progress
    status = move(content.gid, progress.status, event)
    progress = replace(progress, attempts=_noted(content, progress, (answer,)), updated_ms=now_ms, status=status)
    if event == "committed":
        return _delivering(progress, now_ms=now_ms)
    if event == "rolled back":
        return _ended(progress, status, now_ms=now_ms, reason="the checkback says that it was rolled back")
    if answer.result == "ONGOING":
        return _patient(content, progress, now_ms=now_ms, settings=settings)
    return _failing(content, progress, answer.text, now_ms=now_ms, jitter=jitter, settings=settings)


def _branches_heard(
    content: Content,
    progress: Progress,
    answers: Sequence[Heard],
    *,
    now_ms: int,
    jitter: float,
    settings: PledgeSettings,
) -> Progress:
    branches = _counted(progress.branches, answers)
    results = [answer.result for answer in answers]
    delivered = "SUCCESS" in results
    if progress.status in _OVER and (not delivered or branches == progress.branches):
        return progress
    progress = replace(progress, branches=branches, attempts=_noted(content, progress, answers), updated_ms=now_ms)
    if "prepared" not in [branch.status for branch in branches]:
        return _finish(content, progress, now_ms=now_ms)
    event: Event = "delivered" if delivered else "not delivered"
    if (progress.status, event) in LATE:
        return progress
    progress = replace(progress, status=move(content.gid, progress.status, event))
    if delivered:
        progress = _delivering(progress, now_ms=now_ms)
    failed = [answer for answer in answers if answer.result in ("FAILURE", "ERROR")]
    if failed:
        progress = _failing(content, progress, failed[-1].text, now_ms=now_ms, jitter=jitter, settings=settings)
        return _judged(content, progress, now_ms=now_ms, settings=settings)
    if "ONGOING" in results:
        return _patient(content, progress, now_ms=now_ms, settings=settings)
    return progress


def _counted(branches: tuple[BranchProgress, ...], answers: Sequence[Heard]) -> tuple[BranchProgress, ...]:
    """A branch that was delivered stays so, whatever is heard of a repetition."""
    after = list(branches)
    for answer in answers:
        branch = after[answer.index]
        if branch.status == "succeeded":
            continue
        if answer.result == "SUCCESS":
            after[answer.index] = BranchProgress("succeeded", branch.attempts + 1, "", answer.at_ms + answer.took_ms)
        else:
            after[answer.index] = BranchProgress("prepared", branch.attempts + 1, answer.text, 0)
    return tuple(after)


def _noted(content: Content, progress: Progress, answers: Sequence[Heard]) -> tuple[Attempt, ...]:
    attempts = list(progress.attempts)
    for answer in answers:
        name = CHECKBACK_ID if answer.index == CHECKBACK else content.branches[answer.index].branch_id
        attempts.append(Attempt(answer.at_ms, name, answer.result, answer.took_ms, answer.text))
    return tuple(attempts[-PLEDGE_ATTEMPTS_KEPT:])


def _finish(content: Content, progress: Progress, *, now_ms: int) -> Progress:
    if (progress.status, "all delivered") in LATE:
        return progress
    status = move(content.gid, progress.status, "all delivered")
    return _ended(progress, status, now_ms=now_ms, reason="")


def _failing(
    content: Content, progress: Progress, text: str, *, now_ms: int, jitter: float, settings: PledgeSettings
) -> Progress:
    """Full jitter: anything between now and the interval, so that what failed together does not come back together."""
    interval_s = progress.interval_s or base_s(content, progress, settings=settings)
    return replace(
        progress,
        failures=progress.failures + 1,
        failing_since_ms=progress.failing_since_ms or now_ms,
        next_at_ms=now_ms + _ms(interval_s * jitter),
        interval_s=_longer(content, progress, interval_s, settings=settings),
        last_error=text,
        held=False,
    )


def _longer(content: Content, progress: Progress, interval_s: float, *, settings: PledgeSettings) -> float:
    cap_s = max(settings.backoff_max_s, base_s(content, progress, settings=settings))
    return min(2 * interval_s, cap_s)


def _judged(content: Content, progress: Progress, *, now_ms: int, settings: PledgeSettings) -> Progress:
    """Dead after a limit. Only deliveries are given up; a transaction's outcome never is."""
    limit = options_of(content, progress).retry_limit or settings.retry_limit
    failing_ms = now_ms - progress.failing_since_ms
    reason = ""
    if limit and progress.failures >= limit:
        reason = f"failed {progress.failures} times in a row"
    elif settings.dead_after_s and failing_ms >= _ms(settings.dead_after_s):
        reason = f"failed for {failing_ms / 1000:.0f} s"
    if not reason:
        return progress
    return _ended(progress, move(content.gid, progress.status, "given up"), now_ms=now_ms, reason=reason)


def _patient(content: Content, progress: Progress, *, now_ms: int, settings: PledgeSettings) -> Progress:
    """ONGOING: whoever was asked is well and wants time."""
    return replace(
        progress,
        next_at_ms=now_ms + _ms(base_s(content, progress, settings=settings)),
        interval_s=0.0,
        failures=0,
        failing_since_ms=0,
        last_error="",
        held=False,
    )


def _delivering(progress: Progress, *, now_ms: int) -> Progress:
    """Due as soon as its delay is over, with everything counted anew; over at once if there is nothing to deliver."""
    progress = replace(
        progress,
        next_at_ms=max(now_ms, progress.not_before_ms),
        updated_ms=now_ms,
        interval_s=0.0,
        failures=0,
        failing_since_ms=0,
        aborting=False,
        last_error="",
        held=False,
    )
    if progress.branches:
        return progress
    return _ended(progress, MOVES["submitted", "all delivered"], now_ms=now_ms, reason="")


def _ended(progress: Progress, status: Status, *, now_ms: int, reason: str) -> Progress:
    return replace(
        progress,
        status=status,
        updated_ms=now_ms,
        next_at_ms=NEVER_MS,
        finished_ms=now_ms,
        rollback_ms=now_ms if status == "failed" else 0,
        reason=reason,
        aborting=False,
        held=False,
    )


# --------------------------------------------------------------------------------------- what a caller is told


class Delivery(Struct, frozen=True, gc=False):
    """How far a submitted pledge is. `failing` and `ongoing` are no failure: it is committed, and delivery goes on.

    started: being delivered. delayed: not before its time. ongoing: a branch wants time. failing: see `error`; it is
    tried again at `next_at_ms`.
    """

    state: Literal["succeeded", "started", "delayed", "ongoing", "failing", "failed", "dead", "prepared"]
    branch_id: str = ""
    error: str = ""
    next_at_ms: int = 0


def delivery(progress: Progress, *, now_ms: int) -> Delivery:
    if progress.status != "submitted":
        return Delivery(progress.status, error=progress.reason)
    last = progress.attempts[-1] if progress.attempts else None
    at_ms = progress.next_at_ms
    if progress.not_before_ms > now_ms:
        return Delivery("delayed", next_at_ms=progress.not_before_ms)
    if progress.failures or progress.last_error:
        return Delivery("failing", last.branch_id if last else "", progress.last_error, at_ms)
    if last is not None and last.verdict == "ONGOING":
        return Delivery("ongoing", last.branch_id, last.text, at_ms)
    return Delivery("started", next_at_ms=at_ms)


# --------------------------------------------------------------------------------------------------- options


def _merged(prepared: Options, submit: Options) -> Options:
    """What submit says, where it says something; what prepare said elsewhere."""
    if submit in (prepared, _UNSAID):
        return prepared
    said = {field.name: getattr(submit, field.name) for field in fields(Options)}
    return replace(prepared, **{name: value for name, value in said.items() if value != getattr(_UNSAID, name)})


def _not_before(options: Options, *, created_ms: int) -> int:
    delayed_ms = created_ms + _ms(options.delay_s) if options.delay_s > 0 else 0
    return max(delayed_ms, options.not_before_ms)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


_UNTRIED: Final = BranchProgress()
_UNSAID: Final = Options()


def diagram() -> str:
    """The table as a Mermaid state diagram; moves between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in MOVES.items():
        arrows.setdefault(("[*]" if before == "new" else before, after), []).append(event)
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines, "    succeeded --> [*]", "    failed --> [*]", ""])
