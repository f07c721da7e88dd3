"""The transition table and its functions: every event in every status, times, options, comparison of contents."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from avow.errors import ContentDiffers, PledgeDecided
from avow.limits import PLEDGE_ATTEMPTS_KEPT
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Branch, BranchProgress, Content, Options, Progress, Status
from avow.pledge.settings import PledgeSettings
from avow.pledge.state import CHECKBACK, LATE, MOVES, CallResult, Checked, Delivered, Request

NOW = 1_000_000
SETTINGS = PledgeSettings(retry_interval_s=10.0, backoff_max_s=300.0, timeout_to_fail_s=35.0)
STATUSES: tuple[Status, ...] = get_args(Status)
REQUESTS: tuple[Request, ...] = get_args(Request)


def content(*, branches: int = 2, **options: Any) -> Content:
    made = tuple(Branch(f"{place:02d}", f"http://service/{place}", b"{}") for place in range(1, branches + 1))
    return Content("g", made, "http://service/checkback", Options(**options))


def progress_in(status: Status, *, delivered: int = 0, branches: int = 2) -> Progress:
    done = BranchProgress("succeeded", 1, "", NOW)
    states = (done,) * delivered + (BranchProgress(),) * (branches - delivered)
    next_at_ms = NOW if status in ("prepared", "submitted") else NEVER_MS
    return Progress(status, NOW - 1000, NOW - 1000, next_at_ms, states)


def heard(progress: Progress, *answers: CallResult, of: Content | None = None, **changed: Any) -> Progress:
    given: dict[str, Any] = {"now_ms": NOW, "jitter": 0.5, "settings": SETTINGS} | changed
    return state.apply_results(of or content(), progress, answers, **given)


def answer(index: int, result: Any, *, text: str = "why") -> CallResult:
    return CallResult(index, result, NOW - 5, 5, "" if result == "SUCCESS" else text)


# ----------------------------------------------------------------------------------------------- the table


def ask(request: Request, progress: Progress) -> Progress:
    """The function for a request, for a known gid."""
    known = content()
    if request == "prepare":
        return replace(progress, status=state.move("g", progress.status, "prepare"))
    if request == "submit":
        return state.submitted(known, progress, known, now_ms=NOW)
    if request == "abort":
        return state.aborted(known, progress, now_ms=NOW)
    if request == "stop":
        return state.stopped(known, progress, now_ms=NOW)
    if request == "retry":
        return state.retried(known, progress, now_ms=NOW, settings=SETTINGS)
    return state.redriven(known, progress, now_ms=NOW)


@pytest.mark.parametrize(("status", "request_"), [*product(STATUSES, REQUESTS)])
def test_every_request_in_every_status_follows_the_table_or_is_refused(status: Status, request_: Request) -> None:
    before = progress_in(status)
    if (status, request_) in MOVES:
        assert ask(request_, before).status == MOVES[status, request_]
        return
    with pytest.raises(PledgeDecided) as refused:
        ask(request_, before)
    assert refused.value.status == status


CHECKBACKS: dict[Checked, str] = {"committed": "SUCCESS", "rolled back": "FAILURE", "undecided": "ERROR"}


@pytest.mark.parametrize(("status", "event"), [*product(STATUSES, get_args(Checked))])
def test_every_checkback_in_every_status_moves_it_or_comes_late(status: Status, event: Checked) -> None:
    before = progress_in(status)
    after = heard(before, answer(CHECKBACK, CHECKBACKS[event]))
    if (status, event) in MOVES:
        assert after.status == MOVES[status, event]
    else:
        assert (status, event) in LATE
        assert after is before


@pytest.mark.parametrize(("status", "event"), [*product(STATUSES, get_args(Delivered))])
def test_every_answer_of_a_branch_in_every_status_moves_it_or_comes_late(status: Status, event: Delivered) -> None:
    if status == "prepared":
        return  # no branch of a prepared pledge is ever called, and none becomes prepared again
    limit = 1 if event == "given up" else 0
    before = progress_in(status, delivered=1 if event == "all delivered" else 0)
    result = "SUCCESS" if event in ("delivered", "all delivered") else "ERROR"
    after = heard(before, answer(1, result), of=content(retry_limit=limit))
    if (status, event) in MOVES:
        assert after.status == MOVES[status, event]
    else:
        assert (status, event) in LATE
        assert after.status == status
        if result == "ERROR":
            assert after is before


def test_no_branch_answer_can_arrive_for_a_prepared_pledge() -> None:
    with pytest.raises(PledgeDecided):
        heard(progress_in("prepared"), answer(0, "SUCCESS"))


def test_no_transition_is_both_in_the_table_and_late() -> None:
    assert not set(MOVES) & LATE


def test_only_a_submit_a_checkback_or_a_person_decides_a_prepared_pledge() -> None:
    deciding = {event for (before, event), after in MOVES.items() if before == "prepared" and after != "prepared"}
    assert deciding == {"submit", "committed", "rolled back", "stop"}


def test_the_diagram_shows_every_transition() -> None:
    drawn = state.diagram()
    for (before, event), after in MOVES.items():
        arrow = next(
            line for line in drawn.splitlines() if f"{'[*]' if before == 'new' else before} --> {after}:" in line
        )
        assert event in arrow.partition(": ")[2].split(", ")


# ------------------------------------------------------------------------------------------- how it begins


def test_a_checkback_is_due_when_the_time_of_a_prepared_pledge_is_over() -> None:
    begun = state.begun(content(), "prepare", now_ms=NOW, settings=SETTINGS)
    assert (begun.status, begun.next_at_ms) == ("prepared", NOW + 35_000)
    assert state.due(content(), begun, now_ms=NOW + 34_999) == ()
    assert state.due(content(), begun, now_ms=NOW + 35_000) == (CHECKBACK,)
    own = state.begun(content(timeout_to_fail_s=120), "prepare", now_ms=NOW, settings=SETTINGS)
    assert own.next_at_ms == NOW + 120_000


def test_a_plain_message_is_due_at_once_branch_after_branch() -> None:
    begun = state.begun(content(), "submit", now_ms=NOW, settings=SETTINGS)
    assert state.due(content(), begun, now_ms=NOW) == (0,)
    after = heard(begun, answer(0, "SUCCESS"))
    assert state.due(content(), after, now_ms=NOW) == (1,)
    last = heard(after, answer(1, "SUCCESS"))
    assert (last.status, last.next_at_ms, last.finished_ms) == ("succeeded", NEVER_MS, NOW)


def test_concurrent_branches_are_due_together_and_only_undelivered_ones_again() -> None:
    both = content(concurrent=True)
    begun = state.begun(both, "submit", now_ms=NOW, settings=SETTINGS)
    assert state.due(both, begun, now_ms=NOW) == (0, 1)
    after = heard(begun, answer(0, "ERROR"), answer(1, "SUCCESS"), of=both)
    assert after.failures == 1
    assert state.due(both, after, now_ms=after.next_at_ms) == (0,)


def test_a_pledge_without_branches_succeeds_when_it_is_submitted() -> None:
    nothing = content(branches=0)
    assert state.begun(nothing, "submit", now_ms=NOW, settings=SETTINGS).status == "succeeded"
    prepared = state.begun(nothing, "prepare", now_ms=NOW, settings=SETTINGS)
    assert prepared.status == "prepared"
    assert heard(prepared, answer(CHECKBACK, "SUCCESS"), of=nothing).status == "succeeded"


# --------------------------------------------------------------------------------------- comparison of contents


def request(*steps: tuple[str, bytes], **changed: Any) -> Content:
    given: dict[str, Any] = {"checkback": "http://service/checkback"} | changed
    return Content("g", steps=steps or (("http://service/1", b"{}"), ("http://service/2", b"{}")), **given)


@pytest.mark.parametrize(
    "again",
    [
        request(),
        request(checkback=""),
        request(protocol="http"),
        request(options=Options(delay_s=10, wait_result=True, request_timeout_s=8)),
        request(custom_data='{"delay":10}'),
    ],
    ids=["the same", "no checkback in submit", "the default protocol said", "options", "custom data"],
)
def test_differences_of_dtm_clients_in_submit_do_not_change_the_content(again: Content) -> None:
    state.compare(content(), again)


@pytest.mark.parametrize(
    "other",
    [
        request(("http://service/1", b"{}")),
        request(("http://service/2", b"{}"), ("http://service/1", b"{}")),
        request(("http://service/1", b"{}"), ("http://service/2", b'{"amount":31}')),
        request(("http://service/1", b"{}"), ("http://other/2", b"{}")),
        request(checkback="http://other/checkback"),
        request(protocol="json-rpc"),
    ],
    ids=["fewer steps", "another order", "another payload", "another url", "another checkback", "another protocol"],
)
def test_point_3_another_content_under_the_same_gid_is_refused(other: Content) -> None:
    with pytest.raises(ContentDiffers) as refused:
        state.compare(content(), other)
    assert refused.value.definite


def test_a_topic_is_compared_by_its_name_and_not_by_its_subscribers() -> None:
    expanded = Content(
        "g", (Branch("01-01", "http://a", b"x"), Branch("01-02", "http://b", b"x")), steps=(("topic://t", b"x"),)
    )
    state.compare(expanded, Content("g", steps=(("topic://t", b"x"),)))
    with pytest.raises(ContentDiffers):
        state.compare(expanded, Content("g", steps=(("topic://t", b"y"),)))


def test_delivery_options_of_submit_are_used() -> None:
    prepared = state.begun(content(retry_interval_s=5.0), "prepare", now_ms=NOW, settings=SETTINGS)
    submit = request(options=Options(concurrent=True, request_timeout_s=8.0, branch_headers={"a": "b"}))
    after = state.submitted(content(retry_interval_s=5.0), prepared, submit, now_ms=NOW)
    assert after.options == Options(
        concurrent=True, request_timeout_s=8.0, retry_interval_s=5.0, branch_headers={"a": "b"}
    )
    assert state.due(content(), after, now_ms=NOW) == (0, 1)


def test_a_submit_without_options_keeps_those_of_prepare() -> None:
    known = content(concurrent=True, request_timeout_s=8.0)
    prepared = state.begun(known, "prepare", now_ms=NOW, settings=SETTINGS)
    assert state.submitted(known, prepared, request(), now_ms=NOW).options is None


@pytest.mark.parametrize("status", ["submitted", "succeeded", "dead"])
def test_point_3_a_repeated_submit_changes_nothing(status: Status) -> None:
    before = progress_in(status, delivered=1)
    submit = request(options=Options(delay_s=99, concurrent=True))
    assert state.submitted(content(), before, submit, now_ms=NOW) is before


# ------------------------------------------------------------------------------------------------- delay


@pytest.mark.parametrize("where", ["prepare", "submit"])
def test_point_7_a_delay_given_at_prepare_or_submit_is_kept(where: str) -> None:
    known = content(delay_s=10.0) if where == "prepare" else content()
    prepared = state.begun(known, "prepare", now_ms=NOW, settings=SETTINGS)
    submit = request(options=Options(delay_s=10.0)) if where == "submit" else request()
    after = state.submitted(known, prepared, submit, now_ms=NOW + 100)
    assert after.next_at_ms == NOW + 10_000
    assert state.due(known, after, now_ms=NOW + 9_999) == ()
    assert state.due(known, after, now_ms=NOW + 10_000) == (0,)


def test_point_7_a_delay_survives_the_checkback() -> None:
    known = content(delay_s=60.0)
    prepared = state.begun(known, "prepare", now_ms=NOW, settings=SETTINGS)
    after = heard(prepared, answer(CHECKBACK, "SUCCESS"), of=known, now_ms=NOW + 35_000)
    assert (after.status, after.next_at_ms) == ("submitted", NOW + 60_000)
    assert state.due(known, after, now_ms=NOW + 59_999) == ()


def test_not_before_is_a_time_and_the_later_of_both_counts() -> None:
    known = content(delay_s=60.0, not_before_ms=NOW + 5_000)
    assert state.begun(known, "submit", now_ms=NOW, settings=SETTINGS).next_at_ms == NOW + 60_000
    known = content(delay_s=1.0, not_before_ms=NOW + 5_000)
    assert state.begun(known, "submit", now_ms=NOW, settings=SETTINGS).next_at_ms == NOW + 5_000


def test_retry_now_keeps_a_delay_and_a_transactions_time() -> None:
    late = content(delay_s=60.0)
    begun = state.begun(late, "submit", now_ms=NOW, settings=SETTINGS)
    assert state.retried(late, begun, now_ms=NOW + 1, settings=SETTINGS).next_at_ms == NOW + 60_000
    prepared = state.begun(content(), "prepare", now_ms=NOW, settings=SETTINGS)
    assert state.retried(content(), prepared, now_ms=NOW + 1, settings=SETTINGS).next_at_ms == NOW + 35_000
    assert state.retried(content(), prepared, now_ms=NOW + 36_000, settings=SETTINGS).next_at_ms == NOW + 36_000


# ---------------------------------------------------------------------------------------------- back-off


def failed_times(count: int, *, of: Content, jitter: float = 1.0) -> list[Progress]:
    seen = [progress_in("submitted", branches=len(of.branches))]
    for _ in range(count):
        seen.append(heard(seen[-1], answer(0, "ERROR"), of=of, jitter=jitter))
    return seen[1:]


def test_point_6_the_back_off_doubles_up_to_a_cap() -> None:
    waits = [progress.next_at_ms - NOW for progress in failed_times(9, of=content())]
    assert waits == [10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000, 300_000]


def test_point_6_the_back_off_has_full_jitter() -> None:
    third = failed_times(2, of=content())[-1]
    for jitter in (0.0, 0.25, 0.99):
        after = heard(third, answer(0, "ERROR"), jitter=jitter)
        assert after.next_at_ms - NOW == round(40_000 * jitter)


def test_an_explicit_interval_above_the_cap_is_used() -> None:
    waits = [progress.next_at_ms - NOW for progress in failed_times(3, of=content(retry_interval_s=1000.0))]
    assert waits == [1_000_000] * 3


def test_the_first_interval_is_chosen_as_in_dtm() -> None:
    submitted = progress_in("submitted")
    assert state.base_s(content(retry_interval_s=4), submitted, settings=SETTINGS) == 4
    assert state.base_s(content(timeout_to_fail_s=3), submitted, settings=SETTINGS) == 3
    assert state.base_s(content(timeout_to_fail_s=120), submitted, settings=SETTINGS) == 10
    assert state.base_s(content(), submitted, settings=SETTINGS) == 10


def test_after_ongoing_the_checkback_is_repeated_and_no_failure_is_counted() -> None:
    failing = failed_times(5, of=content())[-1]
    after = heard(failing, answer(0, "ONGOING"))
    assert (after.next_at_ms - NOW, after.failures, after.failing_since_ms) == (10_000, 0, 0)


def test_a_delivered_branch_resets_the_back_off() -> None:
    failing = failed_times(5, of=content())[-1]
    after = heard(failing, answer(0, "SUCCESS"))
    assert (after.failures, after.interval_s, after.next_at_ms) == (0, 0.0, NOW)


def test_point_6_attempts_and_the_last_error_are_kept() -> None:
    progress = failed_times(40, of=content())[-1]
    assert len(progress.attempts) == PLEDGE_ATTEMPTS_KEPT
    assert (progress.failures, progress.branches[0].attempts) == (40, 40)
    assert (progress.last_error, progress.branches[0].last_error) == ("why", "why")
    assert progress.attempts[-1].branch_id == "01"


def test_point_6_a_limit_makes_it_dead_and_redrive_delivers_what_is_missing() -> None:
    limited = content(retry_limit=3)
    one = heard(progress_in("submitted"), answer(0, "SUCCESS"), of=limited)
    for _ in range(3):
        assert one.status == "submitted"
        one = heard(one, answer(1, "FAILURE"), of=limited)
    assert (one.status, one.next_at_ms, one.reason) == ("dead", NEVER_MS, "failed 3 times in a row")
    again = state.redriven(limited, one, now_ms=NOW + 1)
    assert (again.status, again.failures, again.finished_ms, again.reason) == ("submitted", 0, 0, "")
    assert state.due(limited, again, now_ms=NOW + 1) == (1,)


def test_the_coordinators_limit_applies_to_a_pledge_without_one() -> None:
    limited = replace(SETTINGS, retry_limit=2)
    once = heard(progress_in("submitted"), answer(0, "ERROR"), settings=limited)
    assert once.status == "submitted"
    assert heard(once, answer(0, "ERROR"), settings=limited).status == "dead"
    assert heard(once, answer(0, "ERROR"), settings=limited, of=content(retry_limit=5)).status == "submitted"


def test_it_is_dead_after_failing_for_a_week_and_not_after_waiting_for_one() -> None:
    week_ms = 7 * 24 * 3600 * 1000
    once = heard(progress_in("submitted"), answer(0, "ERROR"))
    assert heard(once, answer(0, "ERROR"), now_ms=NOW + week_ms - 1).status == "submitted"
    assert heard(once, answer(0, "ERROR"), now_ms=NOW + week_ms).status == "dead"
    never = replace(SETTINGS, dead_after_s=0.0)
    assert heard(once, answer(0, "ERROR"), now_ms=NOW + 10 * week_ms, settings=never).status == "submitted"
    patient = heard(once, answer(0, "ONGOING"), now_ms=NOW + week_ms)
    assert heard(patient, answer(0, "ERROR"), now_ms=NOW + 2 * week_ms).status == "submitted"


def test_point_15_no_number_of_checkbacks_and_no_age_decides_a_prepared_pledge() -> None:
    limited = content(retry_limit=3)
    progress = state.begun(limited, "prepare", now_ms=NOW, settings=SETTINGS)
    now_ms = NOW
    for attempt in range(1, 10_001):
        now_ms = progress.next_at_ms
        result = "ONGOING" if attempt % 100 == 0 else "ERROR"
        progress = heard(progress, answer(CHECKBACK, result), of=limited, now_ms=now_ms, jitter=0.999)
        assert progress.status == "prepared"
    assert now_ms - NOW > 20 * 24 * 3600 * 1000
    assert heard(progress, answer(CHECKBACK, "SUCCESS"), of=limited, now_ms=now_ms).status == "submitted"


# --------------------------------------------------------------------------------------- abort, stop, late


def test_point_11_an_abort_only_asks_sooner() -> None:
    prepared = state.begun(content(), "prepare", now_ms=NOW, settings=SETTINGS)
    asked = state.aborted(content(), prepared, now_ms=NOW + 1)
    assert (asked.status, asked.aborting, asked.next_at_ms) == ("prepared", True, NOW + 1)
    assert state.due(content(), asked, now_ms=NOW + 1) == (CHECKBACK,)
    assert heard(asked, answer(CHECKBACK, "SUCCESS")).status == "submitted"
    assert heard(asked, answer(CHECKBACK, "FAILURE")).status == "failed"


def test_a_repeated_abort_of_a_failed_pledge_changes_nothing() -> None:
    failed = progress_in("failed")
    assert state.aborted(content(), failed, now_ms=NOW) is failed


def test_a_late_delivery_is_recorded_and_changes_no_status() -> None:
    for status in ("failed", "dead"):
        after = heard(progress_in(status), answer(0, "SUCCESS"))
        assert (after.status, after.branches[0].status) == (status, "succeeded")
        assert state.due(content(), after, now_ms=NOW) == ()


def test_a_dead_pledge_whose_last_answer_comes_late_has_succeeded() -> None:
    assert heard(progress_in("dead", delivered=1), answer(1, "SUCCESS")).status == "succeeded"


def test_a_delivered_branch_stays_delivered_whatever_a_repeated_call_returns() -> None:
    once = heard(progress_in("submitted"), answer(0, "SUCCESS"))
    again = heard(once, answer(0, "ERROR"))
    assert again.branches[0].status == "succeeded"


def test_releasing_a_pledge_is_not_an_attempt() -> None:
    before = progress_in("submitted")
    after = state.put_back(content(), before, "closed", now_ms=NOW, jitter=1.0, settings=SETTINGS)
    assert (after.next_at_ms - NOW, after.interval_s) == (300_000, 0.0)
    assert (after.failures, after.attempts, after.last_error) == (0, (), "closed")


def test_a_held_pledge_is_due_only_when_its_holder_must_be_dead() -> None:
    held = state.held(progress_in("submitted"), until_ms=NOW + 10_000)
    assert state.due(content(), held, now_ms=NOW + 9_999) == ()
    assert state.due(content(), held, now_ms=NOW + 10_000) == (0,)
    freed = state.released(held, now_ms=NOW + 1)
    assert state.due(content(), freed, now_ms=NOW + 1) == (0,)
    assert state.released(freed, now_ms=NOW + 2) is freed


# ------------------------------------------------------------------------------------- the status a caller gets


def test_point_4_a_caller_gets_the_actual_status() -> None:
    def state_of(progress: Progress) -> str:
        return state.delivery(progress, now_ms=NOW).state

    fresh = progress_in("submitted")
    assert state_of(fresh) == "started"
    assert state_of(heard(fresh, answer(0, "ONGOING"))) == "ongoing"
    assert state_of(heard(fresh, answer(0, "FAILURE"))) == "failing"
    assert state_of(heard(fresh, answer(0, "ERROR"))) == "failing"
    assert state_of(state.put_back(content(), fresh, "closed", now_ms=NOW, jitter=0, settings=SETTINGS)) == "failing"
    assert state_of(replace(fresh, not_before_ms=NOW + 1)) == "delayed"
    assert state_of(progress_in("succeeded")) == "succeeded"
    assert state_of(progress_in("dead")) == "dead"
    assert state_of(progress_in("failed")) == "failed"


def test_a_failing_delivery_reports_where_why_and_when_it_is_retried() -> None:
    failing = heard(progress_in("submitted"), answer(0, "ERROR", text="HTTP 500: no"))
    state_of = state.delivery(failing, now_ms=NOW)
    assert (state_of.branch_id, state_of.error, state_of.next_at_ms) == ("01", "HTTP 500: no", NOW + 5_000)
