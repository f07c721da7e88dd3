"""Each row of the writer's state table, with time as a plain number."""

from __future__ import annotations

from math import inf

import pytest

from avow.errors import AvowError, InvalidRequest, LaneEnded, Offline, Unknown
from avow.writer.backoff import Backoff, Steady
from avow.writer.steps import Pauses, Request, Settings, Step, Verdict, step_of
from avow.writer.writer import Waiting, Writer

PAUSES = Pauses(first_s=1.0, max_s=8.0)
ORDERED = Settings(window=3, pauses=PAUSES, ordered=True)
EACH = Settings(window=3, pauses=PAUSES)
LANES = Settings(window=3, pauses=PAUSES, in_lanes=True)


def submitted(writer: Writer[Request], *deadlines: float, now: float = 1.0) -> list[Request]:
    writes = [Request(deadline=deadline) for deadline in deadlines]
    for write in writes:
        writer.submit(write, now)
    return writes


def sent(writer: Writer[Request], now: float) -> list[int]:
    return [write.number for write in writer.drain(now).send]


def verdicts(writer: Writer[Request], now: float) -> list[tuple[int, Verdict]]:
    return [(one.write.number, one.verdict) for one in writer.drain(now).decided]


# ------------------------------------------------------------------ in order


def test_as_many_writes_are_in_flight_as_the_window_allows() -> None:
    writer: Writer[Request] = Writer(ORDERED)
    first, *_ = submitted(writer, *[inf] * 5)
    assert sent(writer, 1.0) == [1, 2, 3]
    writer.answered(first, Step.DONE, 2.0)
    ready = writer.drain(2.0)
    assert [write.number for write in ready.send] == [4]
    assert [(one.write, one.verdict) for one in ready.decided] == [(first, Verdict.DONE)]


@pytest.mark.parametrize("step", [Step.ELSEWHERE, Step.UNCERTAIN])
def test_after_a_failed_write_all_in_flight_is_awaited_before_a_probe(step: Step) -> None:
    writer: Writer[Request] = Writer(ORDERED)
    one, two, three, four = submitted(writer, *[inf] * 4)
    assert sent(writer, 1.0) == [1, 2, 3]
    writer.answered(two, step, 2.0)
    writer.answered(one, Step.DONE, 2.0)
    assert sent(writer, 100.0) == []
    writer.answered(three, Step.DONE, 3.0)
    assert writer.drain(3.0).wake_at == 4.0
    assert sent(writer, 3.9) == []
    assert sent(writer, 4.0) == [2], "the first that failed, alone"
    writer.answered(two, Step.DONE, 5.0)
    assert sent(writer, 5.0) == [4], "and the window is open again"
    assert not four.maybe


def test_failed_writes_are_resent_in_order_before_unsent_ones() -> None:
    writer: Writer[Request] = Writer(ORDERED)
    writes = submitted(writer, *[inf] * 5)
    writer.drain(1.0)
    for write in (writes[2], writes[0], writes[1]):
        writer.answered(write, Step.ELSEWHERE, 2.0)
    assert sent(writer, 3.0) == [1]
    writer.answered(writes[0], Step.DONE, 3.0)
    assert sent(writer, 3.0) == [2, 3, 4]


def test_pauses_grow_with_each_failed_round_and_are_reset_by_a_success() -> None:
    writer: Writer[Request] = Writer(ORDERED)
    (write,) = submitted(writer, inf)
    now, pauses = 1.0, []
    for _ in range(5):
        assert sent(writer, now) == [1]
        writer.answered(write, Step.ELSEWHERE, now)
        wake_at = writer.drain(now).wake_at
        pauses.append(wake_at - now)
        now = wake_at
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]
    writer.drain(now)
    writer.answered(write, Step.DONE, now)
    (other,) = submitted(writer, inf)
    writer.drain(now)
    writer.answered(other, Step.ELSEWHERE, now)
    assert writer.drain(now).wake_at == now + 1.0


def test_the_target_is_chosen_first_after_each_failed_round_and_after_a_redirection_without_anything_in_flight() -> (
    None
):
    aimed: list[bool] = []

    def aim(*, failed: bool) -> bool:
        aimed.append(failed)
        return failed

    writer: Writer[Request] = Writer(ORDERED, aim=aim)
    one, two = submitted(writer, inf, inf)
    assert sent(writer, 1.0) == [1, 2]
    (three,) = submitted(writer, inf)
    writer.redirect()
    assert sent(writer, 1.0) == [], "what is in flight goes elsewhere and could be overtaken"
    writer.answered(one, Step.DONE, 2.0)
    assert aimed == [False]
    writer.answered(two, Step.DONE, 2.0)
    assert sent(writer, 2.0) == [3]
    assert aimed == [False, False]
    (four,) = submitted(writer, inf)
    writer.drain(2.0)
    writer.answered(four, Step.ELSEWHERE, 3.0)
    assert aimed == [False, False], "three is in flight"
    writer.answered(three, Step.DONE, 3.0)
    assert aimed == [False, False, True]


def test_a_target_that_an_answer_named_is_asked_at_once_but_not_for_ever() -> None:
    writer: Writer[Request] = Writer(ORDERED, aim=lambda *, failed: failed)
    (write,) = submitted(writer, inf)
    for _ in range(3):
        assert sent(writer, 1.0) == [1]
        writer.answered(write, Step.ELSEWHERE, 1.0)
    assert sent(writer, 1.0) == []


# ------------------------------------------------------------------ each by itself


def test_without_order_each_write_is_retried_independently() -> None:
    writer: Writer[Request] = Writer(EACH)
    one, two, *_ = submitted(writer, *[inf] * 4)
    assert sent(writer, 1.0) == [1, 2, 3]
    writer.answered(one, Step.UNCERTAIN, 1.0)
    writer.answered(two, Step.DONE, 1.5)
    assert sent(writer, 1.5) == [4]
    assert sent(writer, 2.0) == [1]
    assert (one.tries, one.maybe, one.sent_at) == (2, True, 1.0)


def test_a_delayed_request_is_sent_when_it_is_due() -> None:
    writer: Writer[Request] = Writer(EACH)
    writer.submit(Request(due=5.0), 1.0)
    ready = writer.drain(1.0)
    assert (ready.send, ready.wake_at) == ([], 5.0)
    assert sent(writer, 5.0) == [1]


# ------------------------------------------------------------------ lanes


def in_lane(lane: int) -> Writer[Request]:
    writer: Writer[Request] = Writer(LANES)
    writer.bind(lane)
    return writer


def test_without_an_open_lane_writes_wait() -> None:
    writer = in_lane(7)
    writer.bind(None)
    (write,) = submitted(writer, inf)
    assert sent(writer, 1.0) == []
    writer.bind(8)
    assert sent(writer, 1.0) == [1]
    assert write.bound == 8


def test_a_write_that_was_refused_goes_to_the_next_lane() -> None:
    writer = in_lane(7)
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.ELSEWHERE, 2.0, Offline("m"))
    assert write.bound is None
    writer.bind(8)
    assert sent(writer, 2.0) == [1]
    assert write.bound == 8


def test_a_write_that_may_be_in_a_lane_is_repeated_there_while_new_ones_use_another() -> None:
    writer = in_lane(7)
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.UNCERTAIN, 2.0)
    writer.bind(8)
    submitted(writer, *[inf] * 4)
    assert sent(writer, 2.0) == [1, 2, 3, 4], "at once, and it takes no place in the window"
    assert (write.bound, write.maybe) == (7, True)
    writer.answered(write, Step.ELSEWHERE, 3.0)
    assert write.bound == 7, "a refused repetition says nothing of the attempt before"
    assert writer.unclear_count == 1
    assert sent(writer, 4.0) == [1]


def test_a_lane_that_ended_without_the_write_sets_it_free() -> None:
    writer = in_lane(7)
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.UNCERTAIN, 2.0)
    writer.bind(None)
    assert sent(writer, 2.0) == [1]
    writer.answered(write, Step.ENDED, 3.0, LaneEnded("m"))
    assert (write.bound, write.maybe) == (None, False)
    writer.bind(8)
    assert sent(writer, 3.0) == [1]
    assert write.bound == 8


# ------------------------------------------------------------------ verdicts


@pytest.mark.parametrize("settings", [ORDERED, EACH, LANES])
def test_a_refusal_is_final_unless_an_earlier_attempt_got_no_answer(settings: Settings) -> None:
    writer: Writer[Request] = Writer(settings)
    writer.bind(7)
    one, two = submitted(writer, inf, inf)
    writer.drain(1.0)
    writer.answered(one, Step.REFUSED, 1.0, InvalidRequest("m"))
    assert verdicts(writer, 1.0) == [(1, Verdict.REFUSED)]
    writer.answered(two, Step.UNCERTAIN, 1.0)
    assert sent(writer, 2.0) == [2]
    writer.answered(two, Step.REFUSED, 2.0, InvalidRequest("m"))
    assert verdicts(writer, 2.0) == [(2, Verdict.UNKNOWN)]
    assert isinstance(two.error, InvalidRequest)
    assert writer.idle


def test_a_refusal_valid_for_every_attempt_is_final_even_after_a_lost_answer() -> None:
    writer: Writer[Request] = Writer(ORDERED)
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.UNCERTAIN, 1.0)
    writer.drain(2.0)
    writer.answered(write, Step.ENDED, 2.0)
    assert verdicts(writer, 2.0) == [(1, Verdict.REFUSED)]


def test_at_its_deadline_a_write_is_decided_in_any_state() -> None:
    writer: Writer[Request] = Writer(ORDERED)
    one, two, three, *_ = submitted(writer, *[10.0] * 4)
    assert sent(writer, 1.0) == [1, 2, 3]
    writer.answered(one, Step.ELSEWHERE, 2.0, Offline("m"))
    writer.answered(two, Step.UNCERTAIN, 2.0)
    assert writer.drain(2.0).wake_at == 10.0
    writer.tick(9.9)
    assert verdicts(writer, 9.9) == []
    writer.tick(10.0)
    found = dict(verdicts(writer, 10.0))
    assert found == {1: Verdict.REFUSED, 2: Verdict.UNKNOWN, 3: Verdict.UNKNOWN, 4: Verdict.REFUSED}
    assert writer.in_flight_count == 1
    writer.answered(three, Step.DONE, 11.0)
    assert verdicts(writer, 11.0) == [], "nobody hears of it twice"
    assert writer.idle


def test_a_write_that_waits_behind_decided_ones_wakes_the_writer_at_its_own_deadline() -> None:
    source: Waiting[Request] = Waiting()
    writer: Writer[Request] = Writer(Settings(window=1, pauses=PAUSES, ordered=True), source=source)
    early, late = Request(deadline=5.0), Request(deadline=9.0)
    for write in (early, late):
        source.number(write)
    source.put(early)
    assert sent(writer, 1.0) == [1]
    writer.tick(5.0)
    assert verdicts(writer, 5.0) == [(1, Verdict.UNKNOWN)], "it keeps its place in the window until it is answered"
    source.put(late)
    assert writer.drain(6.0).wake_at == 9.0
    writer.tick(9.0)
    assert verdicts(writer, 9.0) == [(2, Verdict.REFUSED)]


def test_an_attempt_that_is_always_answered_is_waited_for_beyond_the_deadline() -> None:
    settings = Settings(window=1, pauses=PAUSES, waits_for_answer=True)
    writer: Writer[Request] = Writer(settings)
    one, *_ = submitted(writer, 10.0, 10.0)
    writer.drain(1.0)
    writer.tick(20.0)
    assert verdicts(writer, 20.0) == [(2, Verdict.REFUSED)]
    assert writer.drain(20.0).wake_at == inf
    writer.answered(one, Step.ELSEWHERE, 21.0)
    assert verdicts(writer, 21.0) == [(1, Verdict.REFUSED)]


def test_the_timeout_starts_with_the_first_failed_attempt() -> None:
    writer: Writer[Request] = Writer(Settings(window=1, pauses=PAUSES, patience_s=2.0))
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.ELSEWHERE, 50.0)
    assert sent(writer, 51.0) == [1]
    writer.answered(write, Step.ELSEWHERE, 51.5)
    assert writer.drain(51.5).wake_at == 52.0
    writer.tick(52.0)
    assert verdicts(writer, 52.0) == [(1, Verdict.REFUSED)]


def test_a_timeout_within_a_pause_ends_it() -> None:
    writer: Writer[Request] = Writer(Settings(window=1, pauses=PAUSES, patience_s=0.5))
    (write,) = submitted(writer, inf)
    writer.drain(1.0)
    writer.answered(write, Step.UNCERTAIN, 50.0)
    assert writer.drain(50.0).wake_at == 50.5
    writer.tick(50.5)
    assert verdicts(writer, 50.5) == [(1, Verdict.UNKNOWN)]


def test_closing_reports_all_remaining_writes() -> None:
    writer: Writer[Request] = Writer(Settings(window=1, pauses=PAUSES))
    submitted(writer, inf, inf)
    writer.drain(1.0)
    writer.close()
    assert dict(verdicts(writer, 1.0)) == {1: Verdict.UNKNOWN, 2: Verdict.REFUSED}


def test_waiting_writes_can_be_refused_while_those_in_flight_continue() -> None:
    writer: Writer[Request] = Writer(Settings(window=1, pauses=PAUSES))
    one, two = submitted(writer, inf, inf)
    writer.drain(1.0)
    writer.refuse_waiting(InvalidRequest("m"))
    assert verdicts(writer, 1.0) == [(2, Verdict.REFUSED)]
    assert isinstance(two.error, InvalidRequest)
    writer.answered(one, Step.DONE, 2.0)
    assert verdicts(writer, 2.0) == [(1, Verdict.DONE)]


@pytest.mark.parametrize("settings", [ORDERED, EACH])
def test_a_forgotten_write_is_not_reported(settings: Settings) -> None:
    writer: Writer[Request] = Writer(settings)
    writes = submitted(writer, *[inf] * 4)
    assert sent(writer, 1.0) == [1, 2, 3]
    writer.answered(writes[0], Step.ELSEWHERE, 1.0)
    for write in writes:
        writer.forget(write)
    assert writer.in_flight_count == 2
    for write in writes[1:3]:
        writer.answered(write, Step.DONE, 2.0)
    ready = writer.drain(100.0)
    assert (ready.send, ready.decided) == ([], [])
    assert writer.idle


def test_an_answer_without_an_attempt_changes_nothing() -> None:
    writer: Writer[Request] = Writer(EACH)
    (write,) = submitted(writer, inf)
    writer.answered(write, Step.DONE, 1.0)
    assert sent(writer, 1.0) == [1]
    writer.answered(write, Step.DONE, 1.0)
    writer.answered(write, Step.ELSEWHERE, 1.0)
    assert verdicts(writer, 1.0) == [(1, Verdict.DONE)]
    assert writer.idle


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (Unknown("m"), Step.UNCERTAIN),
        (AvowError("m"), Step.UNCERTAIN),
        (LaneEnded("m"), Step.ENDED),
        (Offline("m"), Step.ELSEWHERE),
        (InvalidRequest("m"), Step.REFUSED),
    ],
)
def test_the_class_of_an_error_decides_the_step(error: AvowError, step: Step) -> None:
    assert step_of(error) is step


def test_a_part_of_each_pause_is_random() -> None:
    pauses = Pauses(first_s=1.0, max_s=4.0, spread=0.5)
    assert [pauses.after(tries, 0.0) for tries in range(4)] == [0.5, 1.0, 2.0, 2.0]
    assert Backoff(Steady(), pauses).next_s() == 1.0
