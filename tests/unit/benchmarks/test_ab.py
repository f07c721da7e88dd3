"""Two builds side by side: the statistics, the order of turns, the options. Nothing is started."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest
from benchmarks import ab
from benchmarks.ab import Report, order_arms, print_report, read_options
from benchmarks.ab_statistics import (
    AFTER,
    AGAIN,
    ARMS,
    BEFORE,
    CLIENT_CPU,
    FIGURES,
    P50,
    ROUNDS_MIN,
    SERVER_CPU,
    Comparison,
    Interval,
    compare,
    interval_coverage,
    interval_rank,
    judge_ratio,
)
from benchmarks.builds import Build
from benchmarks.rivals.report import Machine
from benchmarks.rivals.work import Sample
from rich.console import Console


def sample(*, server_us: float = 10.0, p50_us: float = 100.0, client_us: float = 5.0) -> Sample:
    return Sample(
        messages=1_000,
        requests=1_000,
        seconds=1.0,
        p50_us=p50_us,
        server_cpu_s=server_us / 1e3,
        client_cpu_s=client_us / 1e3,
    )


def rounds_with(
    rng: random.Random, *, shift: float, noise: float, drift: float = 0.3, rounds: int = ROUNDS_MIN
) -> dict[int, dict[str, Sample]]:
    """Rounds of a machine that is up to `drift` slower from round to round; `after` costs `shift` times as much."""
    found = {}
    for number in range(rounds):
        machine = 1 + rng.random() * drift
        cost = {arm: machine * rng.lognormvariate(0, noise) * (shift if arm == AFTER else 1) for arm in ARMS}
        found[number] = {arm: sample(server_us=cost[arm], p50_us=cost[arm]) for arm in ARMS}
    return found


def interval(median: float, *, low: float, high: float) -> Interval:
    return Interval(median=median, low=low, high=high, coverage=0.99)


# ---------------------------------------------------------------------- intervals


def test_the_interval_of_fifteen_rounds_is_the_third_smallest_and_the_third_largest() -> None:
    found = Interval.of([float(value) for value in range(15, 0, -1)])
    assert (found.low, found.median, found.high) == (3, 8, 13)
    assert found.coverage == pytest.approx(1 - 2 * (1 + 15 + 105) / 2**15)


def test_more_confidence_needs_a_wider_interval() -> None:
    assert interval_rank(15, confidence=0.95) == 4
    assert interval_rank(15, confidence=0.99) == 3
    assert interval_rank(15, confidence=0.999) == 2


def test_few_values_give_the_widest_interval_and_its_actual_coverage() -> None:
    found = Interval.of([2.0, 1.0, 3.0])
    assert (found.low, found.high) == (1, 3)
    assert found.coverage == interval_coverage(3, 1) == 0.75


def test_one_value_covers_nothing() -> None:
    assert Interval.of([2.0]) == Interval(median=2, low=2, high=2, coverage=0)


def test_the_interval_covers_the_true_median_of_a_skewed_distribution_as_often_as_it_says() -> None:
    rng = random.Random(7)
    found = [Interval.of([rng.expovariate(1) for _ in range(15)]) for _ in range(4_000)]
    true_median = 0.6931
    covered = statistics.mean(each.low <= true_median <= each.high for each in found)
    assert covered == pytest.approx(found[0].coverage, abs=0.005)


# ---------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("shift", "judgement"), [(1.10, "worse"), (0.90, "better")])
def test_a_known_shift_is_detected_on_a_machine_that_drifts(shift: float, judgement: str) -> None:
    found = compare("one", P50, rounds_with(random.Random(3), shift=shift, noise=0.02))
    assert found.judgement == judgement
    assert found.ratio.median == pytest.approx(shift, rel=0.03)
    assert found.ratio.low <= shift <= found.ratio.high


def test_two_equal_builds_are_rarely_called_worse() -> None:
    rng = random.Random(11)
    runs = [compare("one", P50, rounds_with(rng, shift=1.0, noise=0.05)).judgement for _ in range(1_000)]
    assert Counter(runs)["worse"] / len(runs) < 0.02


def test_a_median_within_the_interval_of_a_a_is_noise() -> None:
    assert judge_ratio(interval(1.03, low=1.01, high=1.05), interval(1.0, low=0.96, high=1.04)) == "within A/A"


def test_a_median_above_the_interval_of_a_a_is_worse() -> None:
    assert judge_ratio(interval(1.03, low=1.01, high=1.05), interval(1.0, low=0.98, high=1.02)) == "worse"


def test_a_lower_cost_is_not_worse_when_a_a_happened_to_cost_even_less() -> None:
    lucky = interval(0.9, low=0.85, high=0.95)
    assert judge_ratio(interval(0.98, low=0.97, high=0.99), lucky) == "within A/A"


def test_a_higher_cost_is_not_better_when_a_a_happened_to_cost_even_more() -> None:
    unlucky = interval(1.1, low=1.05, high=1.15)
    assert judge_ratio(interval(1.02, low=1.01, high=1.03), unlucky) == "within A/A"


def test_server_cpu_above_its_limit_fails_even_within_noise() -> None:
    rounds = {
        number: {
            BEFORE: sample(),
            AFTER: sample(server_us=10.6, p50_us=106, client_us=5.3),
            AGAIN: sample(server_us=10 + (number - 7), p50_us=100 + 10 * (number - 7), client_us=5 + (number - 7) / 2),
        }
        for number in range(15)
    }
    server, p50, client = (compare("one", name, rounds) for name in (SERVER_CPU, P50, CLIENT_CPU))
    assert {server.judgement, p50.judgement, client.judgement} == {"within A/A"}
    assert server.failed
    assert not p50.failed
    assert not client.failed


def test_each_metric_is_read_from_its_own_field() -> None:
    arms = {BEFORE: sample(), AFTER: sample(server_us=20, p50_us=300, client_us=20), AGAIN: sample()}
    found = [compare("one", name, dict.fromkeys(range(15), arms)).ratio.median for name in FIGURES]
    assert found == pytest.approx([2, 3, 4])


def test_a_round_without_all_arms_is_left_out_and_too_few_rounds_judge_nothing() -> None:
    rounds = rounds_with(random.Random(1), shift=1.0, noise=0.01)
    del rounds[4][AGAIN]
    found = compare("one", P50, rounds)
    assert (found.rounds, found.judgement, found.failed) == (14, "too few rounds", True)


def test_a_load_without_a_complete_round_has_no_results() -> None:
    with pytest.raises(ValueError, match="no round of one"):
        compare("one", P50, {0: {BEFORE: sample()}})


# ---------------------------------------------------------------------- turns and options


def test_each_arm_goes_first_equally_often() -> None:
    orders = order_arms(18, random.Random(5))
    assert {Counter(order[place] for order in orders)[arm] for place in range(3) for arm in ARMS} == {6}


def test_the_seed_decides_the_order_of_turns() -> None:
    assert order_arms(15, random.Random(5)) == order_arms(15, random.Random(5))
    assert order_arms(15, random.Random(5)) != order_arms(15, random.Random(6))


def test_fewer_than_fifteen_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--before", "HEAD", "--rounds", "14"])
    assert "at least 15" in capsys.readouterr().err


def test_a_quick_run_takes_few_rounds() -> None:
    options = read_options(["--before", "HEAD", "--quick", "--rounds", "1", "--only", "batch100,one"])
    assert (options.rounds, options.quick) == (1, True)
    assert [work.name for work in options.loads] == ["one", "batch100"]


def test_a_usual_run_has_fifteen_rounds_of_four_loads() -> None:
    options = read_options(["--before", "HEAD", "--seed", "8"])
    assert (options.rounds, options.seed) == (15, 8)
    assert [(work.name, work.window, work.batch) for work in options.loads] == [
        ("one", 1, 1),
        ("single", 1000, 1),
        ("batch1000", 4, 1000),
        ("batch100", 10, 100),
    ]


def test_an_unknown_commit_is_reported_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert ab.main(["--before", "no-such-commit", "--quick"]) == 2
    assert capsys.readouterr().err.startswith("ab: ")


# ---------------------------------------------------------------------- the report


def report(comparisons: list[Comparison], *, quick: bool = False) -> Report:
    machine = Machine(
        processor="a processor", cores=2, memory_gib=8, kernel="6", python="3.11", load_before=0.0, load_after=0.0
    )
    return Report(
        command="python -m benchmarks ab",
        date="2026-01-01",
        before=Build(name="before", commit="a" * 40, subject="one"),
        after=Build(name="after", commit="b" * 40, subject="two", changed=3),
        seed=1,
        quick=quick,
        rounds=15,
        seconds=1.0,
        machine=machine,
        interval="order statistics",
        comparisons=comparisons,
        left_out=["round 2, one, again: the load generator said nothing"],
        samples={},
    )


def printed(found: Report) -> str:
    console = Console(width=140)
    with console.capture() as captured:
        print_report(found, console)
    return captured.get()


def test_a_report_lists_failures() -> None:
    found = report([compare("single", SERVER_CPU, rounds_with(random.Random(2), shift=1.2, noise=0.01))])
    text = printed(found)
    assert found.failed
    assert "NOT passed: single server CPU µs/message (worse, above 1.05)" in text
    assert "left out: round 2" in text
    assert "99.3%" in text


def test_a_report_of_equal_builds_passes() -> None:
    found = report([compare("single", P50, rounds_with(random.Random(2), shift=1.0, noise=0.01))])
    assert not found.failed
    assert "within A/A" in printed(found)


def test_a_quick_report_judges_nothing() -> None:
    found = report([compare("single", P50, rounds_with(random.Random(2), shift=1.5, noise=0.01))], quick=True)
    assert not found.failed
    assert "worse" not in printed(found)
    assert "mean nothing" in printed(found)
