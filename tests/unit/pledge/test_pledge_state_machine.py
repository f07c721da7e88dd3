"""Invariants of a pledge under any sequence of events with any delays."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from avow.errors import PledgeDecided
from avow.limits import PLEDGE_ATTEMPTS_KEPT
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Branch, Content, Options, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.state import CHECKBACK, LATE, MOVES, CallResult

SETTINGS = PledgeSettings(dead_after_s=3600.0)
RESULTS = st.sampled_from(["SUCCESS", "FAILURE", "ONGOING", "ERROR"])
JITTER = st.floats(0, 1, exclude_max=True)


class PledgeMachine(RuleBasedStateMachine):
    """`called`: calls without an answer yet; it may arrive in any status, much later."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.called: list[int] = []
        self.delivered: set[int] = set()
        self.committed = False  # by a submit or a checkback
        self.stopped = False

    @initialize(
        branches=st.integers(0, 4),
        concurrent=st.booleans(),
        delay_s=st.sampled_from([0.0, 5.0, 500.0]),
        limit=st.integers(0, 4),
        event=st.sampled_from(["prepare", "submit"]),
    )
    def begin(self, branches: int, concurrent: bool, delay_s: float, limit: int, event: Any) -> None:
        made = tuple(Branch(f"{place:02d}", f"http://s/{place}") for place in range(branches))
        options = Options(concurrent=concurrent, delay_s=delay_s, retry_limit=limit)
        self.content = Content("g", made, "http://s/checkback", options)
        self.progress = state.begun(self.content, event, now_ms=self.now_ms, settings=SETTINGS)
        self.begun_ms = self.now_ms
        self.committed = event == "submit"

    def move_to(self, after: Progress, *events: Any) -> None:
        before = self.progress
        reached = {before.status, *(MOVES.get((before.status, event)) for event in events)}
        if not self.content.branches and "submitted" in reached:
            reached.add("succeeded")  # there is nothing to deliver
        assert after.status in reached
        self.progress = after

    @rule(ms=st.sampled_from([1, 1000, 10_000, 400_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def submit(self) -> None:
        try:
            after = state.submitted(self.content, self.progress, self.content, now_ms=self.now_ms)
        except PledgeDecided:
            assert self.progress.status == "failed"
            return
        self.committed = True
        self.move_to(after, "submit")

    @rule()
    def abort(self) -> None:
        try:
            self.move_to(state.aborted(self.content, self.progress, now_ms=self.now_ms), "abort")
        except PledgeDecided:
            assert self.progress.status not in ("prepared", "failed")

    @rule()
    def stop(self) -> None:
        try:
            self.move_to(state.stopped(self.content, self.progress, now_ms=self.now_ms), "stop")
            self.stopped = True
        except PledgeDecided:
            assert self.progress.status in ("succeeded", "failed")

    @rule()
    def retry(self) -> None:
        try:
            after = state.retried(self.content, self.progress, now_ms=self.now_ms, settings=SETTINGS)
            self.move_to(after, "retry")
        except PledgeDecided:
            assert self.progress.status not in ("prepared", "submitted")

    @rule()
    def redrive(self) -> None:
        try:
            self.move_to(state.redriven(self.content, self.progress, now_ms=self.now_ms), "redrive")
        except PledgeDecided:
            assert self.progress.status != "dead"

    @rule(jitter=JITTER)
    def put_back(self, jitter: float) -> None:
        if state.due(self.content, self.progress, now_ms=self.now_ms):
            after = state.put_back(
                self.content,
                self.progress,
                "closed",
                now_ms=self.now_ms,
                jitter=jitter,
                settings=SETTINGS,
            )
            assert after.failures == self.progress.failures
            self.move_to(after)

    @rule()
    def call(self) -> None:
        calls = state.due(self.content, self.progress, now_ms=self.now_ms)
        for index in calls:
            assert index == CHECKBACK or self.progress.status == "submitted"
            assert index == CHECKBACK or self.now_ms >= self.begun_ms + 1000 * self.content.options.delay_s
            assert index not in self.delivered
        if not self.content.options.concurrent:
            assert len(calls) <= 1
        self.called += calls

    @precondition(lambda self: self.called)
    @rule(data=st.data(), result=RESULTS, jitter=JITTER)
    def answer(self, data: st.DataObject, result: Any, jitter: float) -> None:
        index = self.called.pop(data.draw(st.integers(0, len(self.called) - 1)))
        heard = CallResult(index, result, self.now_ms)
        before = self.progress
        after = state.apply_results(
            self.content, before, (heard,), now_ms=self.now_ms, jitter=jitter, settings=SETTINGS
        )
        if index == CHECKBACK:
            self._checked(before, after, result)
            return
        if result == "SUCCESS":
            self.delivered.add(index)
        self.move_to(after, "delivered", "not delivered", "all delivered", "given up")

    def _checked(self, before: Progress, after: Progress, result: str) -> None:
        if before.status != "prepared":
            assert (before.status, "undecided") in LATE
            assert after is before
            return
        self.committed = self.committed or result == "SUCCESS"
        expected = {"SUCCESS": "submitted", "FAILURE": "failed"}.get(result, "prepared")
        if expected == "submitted" and not self.content.branches:
            expected = "succeeded"
        assert after.status == expected
        self.progress = after

    @invariant()
    def it_is_delivered_only_if_committed_and_succeeded_only_if_all_is_delivered(self) -> None:
        if not hasattr(self, "progress"):
            return
        progress = self.progress
        noted = {place for place, branch in enumerate(progress.branches) if branch.status == "succeeded"}
        assert noted <= self.delivered or progress.status == "succeeded"
        if noted or progress.status in ("submitted", "succeeded", "dead"):
            assert self.committed
        if progress.status == "succeeded":
            assert noted == set(range(len(self.content.branches)))
        if progress.status == "submitted":
            assert noted == self.delivered

    @invariant()
    def it_is_due_again_unless_it_is_over(self) -> None:
        if not hasattr(self, "progress"):
            return
        progress = self.progress
        assert (progress.next_at_ms == NEVER_MS) == (progress.status in ("succeeded", "failed", "dead"))
        assert bool(progress.finished_ms) == (progress.status in ("succeeded", "failed", "dead"))
        if progress.status in ("prepared", "submitted"):
            longest_s = max(SETTINGS.backoff_max_s, SETTINGS.timeout_to_fail_s, self.content.options.delay_s)
            assert progress.next_at_ms <= self.now_ms + 1000 * longest_s
        assert len(progress.attempts) <= PLEDGE_ATTEMPTS_KEPT
        if progress.status == "failed":
            assert self.stopped or progress.reason


TestPledgeMachine = PledgeMachine.TestCase
