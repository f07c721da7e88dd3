"""What `avow demo` shows, from made-up samples and events: it fits a small terminal and shows every error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console, RenderableType

from avow.spark.pipelines.audit_report import Finding, Report, StageCount
from avow.spark.pipelines.audit_rules import Stage
from avow.testing.cluster_wait import wait_until
from avow_lab.demo.chain import Decided, PeerSample, Sample
from avow_lab.demo.command import exit_code
from avow_lab.demo.narration import ACTS, Event, Takeover, Verdict
from avow_lab.demo.sampler import Sampler
from avow_lab.demo.view import (
    SPARKS,
    Scene,
    event_object,
    newest,
    picture,
    sparkline,
    verdict_lines,
    verdict_object,
)

LONG = "peer 1 and peer 3 took over after 0.61 s; the longest wait for an answer was 0.74 s (usually 0.02 s), and so on"


def scene(act: str = "peer") -> Scene:
    return Scene(
        act=next(name for name in ACTS if name == act),
        elapsed_s=71.2,
        share=0.4,
        shop_pid=4711,
        shop_open=True,
        driver_pid=4712,
        batches=12,
    )


def samples(peers: int) -> Sample:
    there = tuple(PeerSample(number, 100 + number, number != 2, 2) for number in range(1, peers + 1))
    return Sample(1_234, 1_230, 1_200, there)


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(lambda: samples(3))
    made.start()
    wait_until(lambda: made.latest.rows, what="a sample")
    yield made
    made.stop()


def lines_of(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, height=24, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed below
    with console.file:
        console.print(shown)
    return console.export_text().rstrip("\n").split("\n")


def events(count: int, text: str = LONG) -> list[Event]:
    return [Event(float(number), "peer", "taken_over", text) for number in range(count)]


def test_the_screen_fits_80_by_24_whatever_has_happened(sampler: Sampler) -> None:
    for act in ACTS:
        for count in (0, 1, 40):
            shown = lines_of(picture(scene(act), sampler, events(count), width=80, height=24))
            assert len(shown) <= 23
            assert max(map(len, shown)) <= 80


def test_the_screen_shows_who_is_dead_and_what_is_counted(sampler: Sampler) -> None:
    shown = "\n".join(lines_of(picture(scene(), sampler, events(1), width=80, height=24)))
    assert "kill -9 of a coordinator" in shown
    assert "1,234" in shown
    assert "peer 2   pid 102     dead" in shown
    assert "peer 3   pid 103     coordinates 2 lanes" in shown
    assert "batch 12 is written" in shown


def test_the_newest_events_stay_when_there_is_no_room_for_all() -> None:
    shown = newest([*events(20), Event(30.0, "shop", "killing", "last")], width=80, lines=5)
    assert [line.plain for line in shown] == [f" 18.0 s {LONG}", f" 19.0 s {LONG}", " 30.0 s last"]
    assert len(newest(events(3), width=80, lines=-5)) == 1


def test_a_sparkline_is_as_high_as_its_highest_value() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == SPARKS[0] * 2
    assert sparkline([0.0, 5.0, 10.0]) == f"{SPARKS[0]}{SPARKS[4]}{SPARKS[-1]}"


def test_an_event_is_a_flat_object() -> None:
    taken = Takeover(2, 77, 3, (1, 3), 0.5, 0.7, 0.02)
    made = event_object(Event(3.25, "peer", "taken_over", "so", {"takeover": taken}))
    assert (made["event"], made["at_s"], made["takeover"]["successors"]) == ("taken_over", 3.25, (1, 3))


def report(*findings: Finding, rows: Sequence[int] = (10, 10, 10)) -> Report:
    stages: tuple[Stage, ...] = ("business", "queue", "table")
    counts = tuple(StageCount(stage, "", count, count) for stage, count in zip(stages, rows, strict=True))
    return Report("orders", counts, {}, findings)


def verdict(found: Report, sample: Sample, **given: str | list[str]) -> Verdict:
    return Verdict(
        seed=1,
        duration_s=60.0,
        counted=sample,
        report=found,
        told_committed=10,
        told_rolled_back=2,
        repeated=0,
        decided=Decided(3, 1, 2, 3),
        **given,  # type: ignore[arg-type]
    )


def test_the_verdict_is_clean_when_audit_and_stages_count_the_same() -> None:
    made = verdict(report(), Sample(10, 10, 10))
    assert made.clean
    assert exit_code(made) == 0
    assert verdict_lines(made)[-1].plain == "All counts agree: 10 orders = 10 messages = 10 rows, in 60 s."
    assert verdict_object(made)["clean"] is True


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            verdict(
                report(
                    Finding("lost", "table", "in the queue, not in the table", 1, ("o-1-2-3",)),
                    rows=(10, 10, 9),
                ),
                Sample(10, 10, 9),
            ),
            "lost: 1 in the queue, not in the table (o-1-2-3)",
        ),
        (verdict(report(), Sample(10, 10, 11)), "the audit counted (10, 10, 10)"),
        (verdict(report(), Sample(10, 10, 10), misreported=["o-1: told committed, and it is not"]), "misreported: o-1"),
        (verdict(report(), Sample(10, 10, 10), stuck="a customer waits"), "not delivered: a customer waits"),
        (verdict(report(rows=(0, 0, 0)), Sample()), "the audit counted (0, 0, 0)"),
    ],
)
def test_errors_are_reported(made: Verdict, expected: str) -> None:
    assert not made.clean
    assert exit_code(made) == 1
    text = "\n".join(line.plain for line in verdict_lines(made))
    assert expected in text
    assert text.endswith("The counts do not agree.")


def test_without_pyspark_it_says_what_to_install_and_starts_nothing() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.argv = ['avow', 'demo']; from avow.cli.main import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "avow[spark]" in run.stderr
    assert run.stdout == ""
