"""The checker accepts what a correct queue did, and finds each mistake that is planted into it."""

from __future__ import annotations

from array import array

import pytest
from tests.unit.lab.campaigns.prove_story import QUEUE, Story

from avow_lab.campaigns.peers.checker import check
from avow_lab.campaigns.peers.findings import Anomaly, Findings
from avow_lab.campaigns.peers.history import FinalLane, Kind, Op, Outcome, code_of, digest_of


def a_write(number: int, *, at: tuple[int, int], lane: int = 0, count: int = 1, first: int = 0, **more: object) -> Op:
    op = Op(number, more.pop("session", number), Kind.WRITE, QUEUE, at[0], at[1], count=count, lane=lane)  # type: ignore[arg-type]
    if first:
        op.outcome, op.spans = Outcome.DONE, ((lane, first, first + count - 1),)
    for name, value in more.items():
        setattr(op, name, value)
    return op


def the_end(*codes: int, lane: int = 0, peer: int = 1, queue: str = QUEUE) -> FinalLane:
    return FinalLane(peer, queue, lane, array("q", codes))


def batch(number: int, count: int = 1) -> list[int]:
    return [code_of(number, index) for index in range(count)]


def names(findings: Findings) -> set[Anomaly]:
    return set(findings.counts)


@pytest.mark.parametrize("seed", range(60))
def test_a_correct_queue_is_found_clean(seed: int) -> None:
    story = Story(seed)
    findings = check(story.ops, story.final)
    assert findings.kept == []
    assert all(findings.checked[anomaly] for anomaly in Anomaly)


# ---------------------------------------------------------------------- mistakes planted into a whole story


@pytest.mark.parametrize("seed", range(20))
def test_an_acknowledged_batch_that_vanishes_is_lost(seed: int) -> None:
    story = Story(seed)
    op = story.random.choice(story.done(Kind.WRITE, expected=-1))
    lane, first, last = op.spans[0]
    del story.lanes[lane][first - 1 : last]
    assert Anomaly.LOST in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_a_message_in_two_places_is_duplicated(seed: int) -> None:
    story = Story(seed)
    op = story.random.choice(story.done(Kind.WRITE))
    story.lanes[story.random.randrange(2)].extend(batch(op.number, op.count))
    assert Anomaly.DUPLICATED in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_a_refused_write_that_is_there_is_a_phantom(seed: int) -> None:
    story = Story(seed)
    op = story.random.choice(story.done(Kind.WRITE, outcome=Outcome.REFUSED))
    story.lanes[op.lane].extend(batch(op.number, op.count))
    assert names(check(story.ops, story.final)) >= {Anomaly.PHANTOM}


@pytest.mark.parametrize("seed", range(20))
def test_a_discarded_transaction_that_is_there_is_a_phantom(seed: int) -> None:
    story = Story(seed, steps=800)
    discard = story.random.choice(story.done(Kind.DISCARD))
    stage = next(op for op in story.ops if op.kind is Kind.STAGE and op.txn == discard.txn)
    story.lanes[stage.lane].extend(batch(stage.number, stage.count))
    assert Anomaly.PHANTOM in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_two_acknowledged_writes_in_the_wrong_order_are_reordered(seed: int) -> None:
    story = Story(seed)
    codes = story.lanes[0]
    acknowledged = {op.number for op in story.done(Kind.WRITE)}
    at = next(
        i for i in range(len(codes) - 1) if codes[i] >> 12 != codes[i + 1] >> 12 and codes[i] >> 12 in acknowledged
    )
    codes[at], codes[at + 1] = codes[at + 1], codes[at]
    assert Anomaly.REORDERED in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_that_shows_a_different_lane_disagrees(seed: int) -> None:
    story = Story(seed)
    final = story.final
    copy = story.random.choice(final)
    copy.codes.pop()
    assert names(check(story.ops, final)) == {Anomaly.DISAGREEMENT}


@pytest.mark.parametrize("seed", range(20))
def test_a_published_transaction_that_lost_a_message_is_torn(seed: int) -> None:
    story = Story(seed, steps=800)
    several = [op for op in story.done(Kind.PUBLISH) if op.spans[0][2] > op.spans[0][1]]
    lane, _, last = story.random.choice(several).spans[0]
    del story.lanes[lane][last - 1]
    assert Anomaly.TORN in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_a_read_that_returned_something_else_is_detected(seed: int) -> None:
    story = Story(seed)
    op = story.random.choice([op for op in story.done(Kind.READ) if op.end > op.after])
    op.digest ^= 1
    assert names(check(story.ops, story.final)) == {Anomaly.REORDERED}


@pytest.mark.parametrize("seed", range(20))
def test_a_linearizable_read_that_ended_early_is_detected(seed: int) -> None:
    story = Story(seed)
    reads = [op for op in story.done(Kind.READ, level="linearizable") if op.end > 30]
    op = story.random.choice(reads)
    op.after = op.end = op.end - 20
    assert Anomaly.REAL_TIME in names(check(story.ops, story.final))


@pytest.mark.parametrize("seed", range(20))
def test_a_cursor_that_went_back_is_nonmonotonic(seed: int) -> None:
    story = Story(seed)
    moves = story.done(Kind.MOVE)
    op = moves[-1]
    op.spans = ((0, 0, op.spans[0][2] - 1),)
    assert names(check(story.ops, story.final)) == {Anomaly.NONMONOTONIC}


# ---------------------------------------------------------------------- each rule by hand


def test_an_unknown_write_may_be_there_or_not() -> None:
    unknown = a_write(1, at=(0, 10), outcome=Outcome.UNKNOWN)
    still_open = a_write(2, at=(0, 0))
    assert check([unknown, still_open], [the_end()]).clean
    assert check([unknown, still_open], [the_end(*batch(2), *batch(1))]).clean


def test_an_unknown_batch_that_is_there_in_part_is_torn() -> None:
    unknown = a_write(1, at=(0, 10), count=3, outcome=Outcome.UNKNOWN)
    assert names(check([unknown], [the_end(*batch(1, 2))])) == {Anomaly.TORN}


def test_a_value_that_nobody_wrote_is_a_phantom_and_is_shown() -> None:
    stranger = FinalLane(1, QUEUE, 0, array("q", [-5]), {-5: "?!"})
    findings = check([], [stranger])
    assert names(findings) == {Anomaly.PHANTOM}
    assert "?!" in findings.kept[0].what


def test_a_message_of_another_queue_is_a_phantom_here() -> None:
    elsewhere = a_write(1, at=(0, 10), first=1)
    assert names(check([elsewhere], [the_end(*batch(1)), the_end(*batch(1), queue="other")])) == {Anomaly.PHANTOM}


def test_more_messages_than_were_sent_are_a_phantom() -> None:
    assert Anomaly.PHANTOM in names(check([a_write(1, at=(0, 10), first=1)], [the_end(*batch(1, 2))]))


def test_a_later_write_before_an_acknowledged_one_breaks_real_time() -> None:
    early, late = a_write(1, at=(0, 10), first=2), a_write(2, at=(20, 30), first=1)
    assert names(check([early, late], [the_end(*batch(2), *batch(1))])) == {Anomaly.REAL_TIME}
    late.session = early.session
    assert names(check([early, late], [the_end(*batch(2), *batch(1))])) == {Anomaly.REORDERED}


def test_a_later_unanswered_write_must_not_precede_an_acknowledged_one() -> None:
    early, late = a_write(1, at=(0, 10), first=2), a_write(2, at=(20, 30), outcome=Outcome.UNKNOWN)
    assert names(check([early, late], [the_end(*batch(2), *batch(1))])) == {Anomaly.REAL_TIME}


def test_overlapping_writes_may_have_either_order() -> None:
    ops = [a_write(1, at=(0, 25), first=2), a_write(2, at=(20, 30), first=1)]
    assert check(ops, [the_end(*batch(2), *batch(1))]).clean


def test_an_unanswered_write_may_take_effect_late() -> None:
    ops = [a_write(1, at=(0, 10), outcome=Outcome.UNKNOWN), a_write(2, at=(20, 30), first=1)]
    assert check(ops, [the_end(*batch(2), *batch(1))]).clean


def test_order_is_required_only_within_a_lane() -> None:
    ops = [a_write(1, at=(0, 10), lane=7, first=1), a_write(2, at=(20, 30), lane=3, first=1)]
    assert check(ops, [the_end(*batch(2), lane=3), the_end(*batch(1), lane=7)]).clean


def test_a_compare_and_append_must_follow_directly() -> None:
    ops = [a_write(1, at=(0, 10), first=1), a_write(2, at=(5, 15), first=2, expected=0)]
    assert names(check(ops, [the_end(*batch(1), *batch(2))])) == {Anomaly.EXPECTED}
    ops[1].outcome, ops[1].spans = Outcome.UNKNOWN, ()
    assert names(check(ops, [the_end(*batch(1), *batch(2))])) == {Anomaly.EXPECTED}


def test_two_winners_of_one_expected_cursor_are_found() -> None:
    ops = [a_write(1, at=(0, 10), first=1, expected=0), a_write(2, at=(5, 15), first=1, expected=0)]
    assert Anomaly.EXPECTED in names(check(ops, [the_end(*batch(1), *batch(2))]))


@pytest.mark.parametrize(("named", "right"), [(3, True), (0, False), (2, False), (1, False), (9, False)])
def test_a_refusal_must_name_an_end_that_the_lane_had_at_that_time(named: int, right: bool) -> None:
    ops = [
        a_write(1, at=(0, 10), first=1),
        a_write(2, at=(20, 30), first=2, count=2),
        a_write(3, at=(40, 50), outcome=Outcome.REFUSED, code="NOT_EQUAL", expected=1, cursor=named),
    ]
    findings = check(ops, [the_end(*batch(1), *batch(2, 2))])
    assert names(findings) == (set() if right else {Anomaly.EXPECTED})


def test_a_split_write_may_lie_in_several_lanes_each_in_order() -> None:
    op = a_write(1, at=(0, 10), count=4, split=True, outcome=Outcome.DONE, spans=((0, 1, 2), (1, 1, 2)))
    a, b, c, d = batch(1, 4)
    assert check([op], [the_end(a, c, lane=0), the_end(b, d, lane=1)]).clean
    assert names(check([op], [the_end(c, a, lane=0), the_end(b, d, lane=1)])) == {Anomaly.REORDERED}
    assert names(check([op], [the_end(a, c, lane=0), the_end(b, lane=1)])) == {Anomaly.LOST}
    op.outcome = Outcome.REFUSED
    assert check([op], [the_end(a, c, lane=0)]).clean


def test_a_transaction_must_lie_in_one_piece() -> None:
    stages = [Op(n, 1, Kind.STAGE, QUEUE, n, n, Outcome.DONE, count=2, lane=0, txn=1) for n in (1, 2)]
    publish = Op(3, 1, Kind.PUBLISH, QUEUE, 5, 9, Outcome.UNKNOWN, lane=0, txn=1)
    other = a_write(4, at=(0, 20), outcome=Outcome.UNKNOWN)
    ops = [*stages, publish, other]
    assert check(ops, [the_end(*batch(1, 2), *batch(2, 2), *batch(4))]).clean
    assert check(ops, [the_end()]).clean
    assert names(check(ops, [the_end(*batch(1, 2), *batch(4), *batch(2, 2))])) == {Anomaly.TORN}
    assert names(check(ops, [the_end(*batch(2, 2), *batch(1, 2))])) == {Anomaly.TORN}
    assert names(check(ops, [the_end(*batch(1, 2))])) == {Anomaly.TORN}
    publish.outcome = Outcome.REFUSED
    assert Anomaly.PHANTOM in names(check(ops, [the_end(*batch(1, 2), *batch(2, 2))]))


def a_wide_transaction(outcome: Outcome) -> list[Op]:
    """A batch of two in lane 0 and one of one in lane 1."""
    stages = [Op(n, 1, Kind.STAGE, QUEUE, n, n, Outcome.DONE, count=3 - n, lane=n - 1, txn=1) for n in (1, 2)]
    return [*stages, Op(3, 1, Kind.PUBLISH, QUEUE, 5, 9, outcome, txn=1)]


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.DONE])
def test_a_transaction_over_two_lanes_has_one_outcome(outcome: Outcome) -> None:
    ops = a_wide_transaction(outcome)
    ops[-1].spans = ((0, 1, 2), (1, 1, 1)) if outcome is Outcome.DONE else ()
    assert check(ops, [the_end(*batch(1, 2), lane=0), the_end(*batch(2), lane=1)]).clean
    assert Anomaly.TORN in names(check(ops, [the_end(*batch(1, 2), lane=0), the_end(lane=1)]))
    assert Anomaly.TORN in names(check(ops, [the_end(lane=0), the_end(*batch(2), lane=1)]))


def test_a_refused_publish_over_two_lanes_happened_in_none() -> None:
    ops = a_wide_transaction(Outcome.REFUSED)
    assert check(ops, [the_end(lane=0), the_end(lane=1)]).clean
    assert Anomaly.PHANTOM in names(check(ops, [the_end(*batch(1, 2), lane=0), the_end(*batch(2), lane=1)]))


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REFUSED])
def test_below_level_2_each_lane_of_a_transaction_decides_alone(outcome: Outcome) -> None:
    ops = a_wide_transaction(outcome)
    assert check(ops, [the_end(*batch(1, 2), lane=0), the_end(lane=1)], one_outcome=False).clean
    assert Anomaly.TORN in names(check(ops, [the_end(code_of(1, 0), lane=0), the_end(lane=1)], one_outcome=False))


def test_messages_of_a_stream_are_there_once_and_in_order_in_any_number_of_batches() -> None:
    stream = Op(1, 1, Kind.STREAM, QUEUE, 0, 50, Outcome.DONE, count=4)
    other = a_write(2, at=(0, 50), outcome=Outcome.UNKNOWN)
    a, b, c, d = batch(1, 4)
    ops = [stream, other]
    assert check(ops, [the_end(a, *batch(2), b, lane=0), the_end(c, d, lane=1)]).clean
    assert names(check(ops, [the_end(a, b, c)])) == {Anomaly.LOST}
    assert names(check(ops, [the_end(a, b, c, d, lane=0), the_end(c, d, lane=1)])) == {Anomaly.DUPLICATED}
    assert names(check(ops, [the_end(b, a, c, d)])) == {Anomaly.REORDERED}


def test_of_a_stream_whose_commit_has_no_answer_each_message_may_be_there() -> None:
    stream = Op(1, 1, Kind.STREAM, QUEUE, 0, 50, Outcome.UNKNOWN, count=4)
    a, b, _, d = batch(1, 4)
    assert check([stream], [the_end(a, b)]).clean
    assert check([stream], [the_end()]).clean
    assert names(check([stream], [the_end(a, b, lane=0), the_end(d, b, lane=1)])) == {Anomaly.DUPLICATED}


def test_a_refusal_may_name_an_end_between_two_batches_of_a_stream() -> None:
    stream = Op(1, 1, Kind.STREAM, QUEUE, 0, 50, Outcome.UNKNOWN, count=3)
    late = a_write(2, at=(10, 20), expected=0, outcome=Outcome.REFUSED, code="NOT_EQUAL", cursor=2)
    assert check([stream, late], [the_end(*batch(1, 3))]).clean


def test_a_transaction_nobody_published_stays_invisible() -> None:
    stage = Op(1, 1, Kind.STAGE, QUEUE, 0, 5, Outcome.DONE, count=1, lane=0, txn=1)
    assert names(check([stage], [the_end(*batch(1))])) == {Anomaly.PHANTOM}


def test_a_session_reads_its_own_writes_at_least() -> None:
    write = a_write(1, at=(0, 10), first=1, session=1)
    read = Op(2, 1, Kind.READ, QUEUE, 20, 30, Outcome.DONE, lane=0, level="at_least", after=0, end=0)
    assert names(check([write, read], [the_end(*batch(1))])) == {Anomaly.NONMONOTONIC}
    read.level = "local"
    assert check([write, read], [the_end(*batch(1))]).clean


def test_a_message_that_a_reader_saw_and_no_peer_has_is_lost() -> None:
    codes = array("q", batch(1))
    read = Op(2, 2, Kind.READ, QUEUE, 20, 30, Outcome.DONE, lane=0, level="local", end=1, digest=digest_of(codes))
    findings = check([a_write(1, at=(0, 10), outcome=Outcome.UNKNOWN), read], [the_end()])
    assert names(findings) == {Anomaly.LOST}


def test_a_lookup_is_an_acknowledgement() -> None:
    write = a_write(1, at=(0, 10), outcome=Outcome.UNKNOWN)
    found = Op(2, 1, Kind.LOOKUP, QUEUE, 20, 30, Outcome.DONE, lane=0, about=1, spans=((0, 1, 1),))
    assert check([write, found], [the_end(*batch(1))]).clean
    assert names(check([write, found], [the_end()])) == {Anomaly.LOST}
    ended = Op(3, 1, Kind.LOOKUP, QUEUE, 20, 30, Outcome.REFUSED, "LANE_ENDED", lane=0, about=1)
    assert names(check([write, ended], [the_end(*batch(1))])) == {Anomaly.PHANTOM}


def test_a_cursor_beyond_every_move_is_a_phantom() -> None:
    move = Op(1, 1, Kind.MOVE, QUEUE, 0, 5, Outcome.DONE, lane=0, subscriber="s", after=3, spans=((0, 0, 9),))
    assert names(check([move], [])) == {Anomaly.PHANTOM}


def test_a_quarter_of_a_million_messages_are_checked_one_by_one() -> None:
    count, size = 12_500, 20
    codes = array("q")
    ops = []
    for number in range(1, count + 1):
        ops.append(a_write(number, at=(number * 10, number * 10 + 25), first=len(codes) + 1, count=size))
        codes.extend(batch(number, size))
    findings = check(ops, [FinalLane(peer, QUEUE, 0, codes) for peer in (1, 2, 3)])
    assert findings.clean
    assert findings.checked[Anomaly.LOST] == count * size


def test_a_lane_that_a_peer_cannot_show_is_a_disagreement() -> None:
    write = a_write(1, at=(0, 10), first=1)
    damaged = the_end(peer=2)
    damaged.unreadable = "STORAGE_DAMAGED"
    assert names(check([write], [the_end(*batch(1)), damaged])) == {Anomaly.DISAGREEMENT}
