"""The parts of the comparison that decide its report: options, ratios, targets, the region of the document."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.against import Options, read_count, read_options
from benchmarks.rivals.redis import SINGLE_CONNECTIONS, as_connections
from benchmarks.rivals.report import BEGIN, END, Machine, Report, as_markdown, verdict, write_document
from benchmarks.rivals.targets import judge
from benchmarks.rivals.work import WORKS, Figures, Sample, Spread


def sample(*, per_s: float, cpu_us: float = 10.0, p50_us: float = 100.0) -> Sample:
    messages = 1_000
    return Sample(
        messages=messages,
        requests=messages,
        seconds=messages / per_s,
        p50_us=p50_us,
        server_cpu_s=messages * cpu_us / 1e6,
        client_cpu_s=0.001,
    )


def report(samples: dict[str, dict[str, dict[int, Sample]]]) -> Report:
    machine = Machine(
        processor="a processor", cores=2, memory_gib=8, kernel="6", python="3.11", load_before=0.0, load_after=0.0
    )
    return Report(
        command="python -m benchmarks against",
        date="2026-01-01",
        rounds=1,
        seconds=1.0,
        machine=machine,
        contenders=[],
        missing={"Redis": "there is no redis-server"},
        samples=samples,
        figures={
            work: {name: Figures.of(list(rounds.values())) for name, rounds in by.items()}
            for work, by in samples.items()
        },
        alone=None,
        targets=judge(samples, reading=None, backlog=None, backlog_messages=10),
    )


def test_a_spread_is_the_median_with_its_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0)


def test_a_target_compares_turns_of_the_same_round() -> None:
    ours = {0: sample(per_s=300), 1: sample(per_s=900), 2: sample(per_s=40)}
    theirs = {0: sample(per_s=100), 1: sample(per_s=200)}
    target = judge({"single": {"Avow": ours, "NATS sync": theirs}}, reading=None, backlog=None, backlog_messages=1)[0]
    assert target.figure is not None
    assert target.figure.median == pytest.approx(3.75)
    assert target.figure.low == pytest.approx(3.0)
    assert target.reached is True


def test_a_target_with_a_ceiling_is_missed_above_it() -> None:
    ours, theirs = {0: sample(per_s=1, p50_us=61)}, {0: sample(per_s=1, p50_us=100)}
    targets = judge({"one": {"Avow": ours, "NATS sync": theirs}}, reading=None, backlog=None, backlog_messages=1)
    latency = next(target for target in targets if "p50" in target.text)
    assert verdict(latency) == "NOT reached"


def test_a_target_without_results_is_neither_reached_nor_missed() -> None:
    targets = judge({}, reading=None, backlog=None, backlog_messages=1)
    assert {target.reached for target in targets} == {None}


def test_reading_and_backlog_are_judged_by_their_own_results() -> None:
    fast, level = Spread.of([6e6]), Spread.of([0.89])
    targets = judge({}, reading=fast, backlog=level, backlog_messages=50_000_000)
    assert [target.reached for target in targets[-2:]] == [True, False]
    assert "50,000,000" in targets[-1].text


def test_concurrent_redis_requests_have_a_connection_each() -> None:
    mapped = {work.name: as_connections(work) for work in WORKS}
    assert (mapped["batch1000"].connections, mapped["batch1000"].batch) == (4, 1000)
    assert (mapped["connections"].connections, mapped["connections"].batch) == (64, 1)
    assert mapped["one"].connections == 1
    single = mapped["single"]
    assert single.connections == SINGLE_CONNECTIONS
    assert single.connections * single.batch == 1000


@pytest.mark.parametrize(("text", "count"), [("50M", 50_000_000), ("200k", 200_000), ("1.5M", 1_500_000), ("12", 12)])
def test_counts_are_read_with_their_unit(text: str, count: int) -> None:
    assert read_count(text) == count


def test_options_choose_workloads_and_rivals_in_their_usual_order() -> None:
    options = read_options(["--only", "one,single", "--rivals", "redis,nats-sync", "--rounds", "3"])
    assert [work.name for work in options.works] == ["single", "one"]
    assert options.rivals == ("nats-sync", "redis")
    assert not options.whole


def test_only_a_complete_run_may_replace_the_documented_results() -> None:
    assert Options().whole
    assert not Options(rounds=2).whole
    assert not Options(rivals=()).whole


def test_an_unknown_rival_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--rivals", "kafka"])
    assert "nats-sync" in capsys.readouterr().err


def test_the_document_keeps_its_prose_and_gets_new_results(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"before\n{BEGIN}\nold figures\n{END}\nafter\n")
    found = report({"one": {"Avow": {0: sample(per_s=2_000)}, "Redis": {0: sample(per_s=1_000)}}})
    write_document(found, path)
    write_document(found, path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old figures" not in text
    assert text.count("| Redis | 1,000 (1,000 to 1,000) |") == 1


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("prose only")
    with pytest.raises(ValueError, match="no region"):
        write_document(report({}), path)
    assert path.read_text() == "prose only"


def test_missing_measurements_are_reported() -> None:
    assert "Not measured: Redis: there is no redis-server" in as_markdown(report({}))
