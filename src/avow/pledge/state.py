"""The state machine of a pledge: a table of transitions, and the functions that apply it. Pure: time and randomness are
arguments.

    prepare ─► prepared ──submit, or the checkback says committed──► submitted ──all branches delivered──► succeeded
                  └──the checkback says rolled back──► failed            └──failed for too long──► dead
                                                                          ◄──────────redrive────────┘

Only a *submit* or the *checkback* decides. Neither a number of calls nor an age changes a prepared pledge; an abort
only calls the checkback sooner. `stop` is the only request by an operator that overrides it.

A second request with the same gid is compared with the first: the steps (URLs and payloads, topics not expanded), the
protocol, and the checkback if both name one. These say what is delivered and who decides; if they differ it is another
pledge and is refused. Options and custom_data say how it is delivered and are not compared: dtm's clients send a delay
only with submit, other clients send nulls in one request and defaults in the other, and a service that was redeployed
with another timeout must be able to finish its pledges. Options that submit gives and prepare did not are used
(`Progress.options`); a repeated submit changes nothing.

A verdict may be late: a submit overtook the checkback, an operator stopped the pledge, another coordinator finished it.
A late verdict does not change the status: deliveries are recorded, nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec.structs import fields, replace

from avow.errors import ContentDiffers, PledgeDecided
from avow.limits import PLEDGE_ATTEMPTS_KEPT
from avow.pledge.record import (
    NEVER_MS,
    Attempt,
    BranchProgress,
    CallResult,
    Content,
    Delivery,
    Options,
    Progress,
    Status,
)
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
    ("prepared", "abort"): "prepared",  # the checkback is called at once
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
    ("dead", "all delivered"): "succeeded",  # the last answer was late
}

_CHECKED: Final[tuple[Checked, ...]] = ("committed", "rolled back", "undecided")
_DELIVERED: Final[tuple[Delivered, ...]] = ("delivered", "all delivered", "not delivered", "given up")
_DECIDED: Final[tuple[Status, ...]] = ("submitted", "succeeded", "failed", "dead")
_OVER: Final[tuple[Status, ...]] = ("succeeded", "failed", "dead")

#: Late verdicts. They change no status.
LATE: Final[frozenset[tuple[Before, Event]]] = frozenset(
    {(status, event) for status in _DECIDED for event in _CHECKED}
    | {(status, event) for status in _OVER for event in _DELIVERED if (status, event) not in MOVES}
)


def move(gid: str, status: Before, event: Event) -> Status:
    """The next status. Raises PledgeDecided for a request that is not in the table."""
    after = MOVES.get((status, event))
    if after is None:
        raise PledgeDecided(gid, status=status, event=event)
    return after


# ------------------------------------------------------------------------------------------------- requests


def begun(content: Content, event: Literal["prepare", "submit"], *, now_ms: int, settings: PledgeSettings) -> Progress:
    """The first progress of a new gid."""
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
    """Raises ContentDiffers unless `request` is for the same pledge as the stored content."""
    differing = "steps" if known.asked() != request.asked() else ""
    if (known.protocol or "http") != (request.protocol or "http"):
        differing = "protocol"
    if known.checkback and request.checkback and known.checkback != request.checkback:
        differing = "checkback"
    if differing:
        raise ContentDiffers(
            f"pledge {known.gid} exists with different content ({differing}); nothing was changed. "
            "Use a new gid for a new pledge"
        )


def submitted(content: Content, progress: Progress, request: Content, *, now_ms: int) -> Progress:
    """Returns the same progress if it was submitted before."""
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
    """The checkback is due at once, and decides. Returns the same progress if it failed already."""
    if move(content.gid, progress.status, "abort") == "failed":
        return progress
    return replace(progress, aborting=True, next_at_ms=now_ms, updated_ms=now_ms, interval_s=0.0, held=False)


def stopped(content: Content, progress: Progress, *, now_ms: int, reason: str = "") -> Progress:
    """An operator's request: deliver nothing more, whatever the transaction's outcome."""
    status = move(content.gid, progress.status, "stop")
    return _ended(progress, status, now_ms=now_ms, reason=reason or "stopped by hand")


def retried(content: Content, progress: Progress, *, now_ms: int, settings: PledgeSettings) -> Progress:
    """Due now, but not before its delay, nor before the time after which a prepared pledge's checkback is called."""
    status = move(content.gid, progress.status, "retry")
    earliest_ms = progress.not_before_ms
    if status == "prepared":
        patience_s = content.options.timeout_to_fail_s or settings.timeout_to_fail_s
        earliest_ms = 0 if progress.aborting else progress.created_ms + _ms(patience_s)
    next_at_ms = max(now_ms, earliest_ms)
    return replace(progress, next_at_ms=next_at_ms, updated_ms=now_ms, interval_s=0.0, held=False)


def redriven(content: Content, progress: Progress, *, now_ms: int) -> Progress:
    """A dead pledge is submitted again: deliveries are kept, failures are counted from 0."""
    status = move(content.gid, progress.status, "redrive")
    return _delivering(replace(progress, status=status, finished_ms=0, reason=""), now_ms=now_ms)


# ------------------------------------------------------------------------------------------------- delivery


def due(content: Content, progress: Progress, *, now_ms: int) -> tuple[int, ...]:
    """The calls that are due now: indexes of branches, or CHECKBACK."""
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


def apply_results(
    content: Content,
    progress: Progress,
    answers: Sequence[CallResult],
    *,
    now_ms: int,
    jitter: float,
    settings: PledgeSettings,
) -> Progress:
    """Applies the results of one round: that of the checkback, or of some branches. `jitter` is in [0, 1).

    Returns the same progress if they are late and there is nothing to record.
    """
    if answers[0].index == CHECKBACK:
        return _apply_checkback(content, progress, answers[0], now_ms=now_ms, jitter=jitter, settings=settings)
    return _apply_branches(content, progress, answers, now_ms=now_ms, jitter=jitter, settings=settings)


def put_back(
    content: Content, progress: Progress, reason: str, *, now_ms: int, jitter: float, settings: PledgeSettings
) -> Progress:
    """It was not called, because its endpoint is closed or at its limit. No attempt is counted and the back-off stays.

    It is due at a random time up to the longest interval. The coordinator calls it as soon as there is room, so an
    earlier time would only cause work, for thousands of pledges at a time.
    """
    longest_s = max(settings.backoff_max_s, base_s(content, progress, settings=settings))
    return replace(
        progress, next_at_ms=now_ms + _ms(longest_s * jitter), updated_ms=now_ms, last_error=reason, held=False
    )


def held(progress: Progress, *, until_ms: int) -> Progress:
    """Stored while a coordinator delivers it: if that one crashes, others see it due at `until_ms`."""
    return replace(progress, next_at_ms=until_ms, held=True)


def released(progress: Progress, *, now_ms: int) -> Progress:
    """Due now, because the coordinator that held it is dead. Returns the same progress if it is not held."""
    return replace(progress, next_at_ms=now_ms, held=False) if progress.held else progress


def base_s(content: Content, progress: Progress, *, settings: PledgeSettings) -> float:
    """The first retry interval, chosen as in dtm."""
    options = options_of(content, progress)
    if options.retry_interval_s:
        return options.retry_interval_s
    patience_s = options.timeout_to_fail_s or 0.0
    return patience_s if 0 < patience_s < settings.retry_interval_s else settings.retry_interval_s


def options_of(content: Content, progress: Progress) -> Options:
    return progress.options or content.options


# ------------------------------------------------------------------------------------------------- verdicts


def _apply_checkback(
    content: Content, progress: Progress, answer: CallResult, *, now_ms: int, jitter: float, settings: PledgeSettings
) -> Progress:
    verdicts: dict[Result, Checked] = {"SUCCESS": "committed", "FAILURE": "rolled back"}
    event = verdicts.get(answer.result, "undecided")
    if (progress.status, event) in LATE:
        return progress
    status = move(content.gid, progress.status, event)
    progress = replace(
        progress, attempts=_with_attempts(content, progress, (answer,)), updated_ms=now_ms, status=status
    )
    if event == "committed":
        return _delivering(progress, now_ms=now_ms)
    if event == "rolled back":
        return _ended(
            progress, status, now_ms=now_ms, reason="the checkback answered that the transaction was rolled back"
        )
    if answer.result == "ONGOING":
        return _patient(content, progress, now_ms=now_ms, settings=settings)
    return _failing(content, progress, answer.text, now_ms=now_ms, jitter=jitter, settings=settings)


def _apply_branches(
    content: Content,
    progress: Progress,
    answers: Sequence[CallResult],
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
    progress = replace(
        progress, branches=branches, attempts=_with_attempts(content, progress, answers), updated_ms=now_ms
    )
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
        return _given_up_if_due(content, progress, now_ms=now_ms, settings=settings)
    if "ONGOING" in results:
        return _patient(content, progress, now_ms=now_ms, settings=settings)
    return progress


def _counted(branches: tuple[BranchProgress, ...], answers: Sequence[CallResult]) -> tuple[BranchProgress, ...]:
    """A delivered branch stays delivered, whatever the result of a repeated call."""
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


def _with_attempts(content: Content, progress: Progress, answers: Sequence[CallResult]) -> tuple[Attempt, ...]:
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
    """Full jitter: a random time up to the interval, so that pledges that failed together are not retried together."""
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


def _given_up_if_due(content: Content, progress: Progress, *, now_ms: int, settings: PledgeSettings) -> Progress:
    """Dead after a limit. Only deliveries are given up, never the question for a transaction's outcome."""
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
    """ONGOING: the service works and needs more time."""
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
    """Due when its delay is over, with all counters reset. It succeeds at once if there is nothing to deliver."""
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


# --------------------------------------------------------------------------------------- delivery state


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
    """The options of prepare, overridden by those that submit gives."""
    if submit in (prepared, _DEFAULTS):
        return prepared
    given = {field.name: getattr(submit, field.name) for field in fields(Options)}
    return replace(prepared, **{name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)})


def _not_before(options: Options, *, created_ms: int) -> int:
    delayed_ms = created_ms + _ms(options.delay_s) if options.delay_s > 0 else 0
    return max(delayed_ms, options.not_before_ms)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


_UNTRIED: Final = BranchProgress()
_DEFAULTS: Final = Options()


def diagram() -> str:
    """The table as a Mermaid state diagram; transitions between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in MOVES.items():
        arrows.setdefault(("[*]" if before == "new" else before, after), []).append(event)
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines, "    succeeded --> [*]", "    failed --> [*]", ""])
