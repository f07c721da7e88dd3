"""A campaign's report on availability, and its chart."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path

import pytest

from avow_lab.campaigns.peers.faults import Fault, both
from avow_lab.campaigns.peers.file_loss import flip
from avow_lab.campaigns.peers.findings import KEPT_MAX, Anomaly, Findings
from avow_lab.campaigns.peers.history import Kind, Op, Outcome
from avow_lab.campaigns.peers.timeline import Band, draw, draw_html, timeline_of
from avow_lab.campaigns.peers.verdict import (
    acknowledged_of,
    gaps_of,
    operations_of,
    pause_after,
    refusals_of,
    resumed_of,
)

S = 1_000_000_000


def writes_at(*times_s: float, queue: str = "q", lane: int = 0, count: int = 2) -> list[Op]:
    return [
        Op(n, 1, Kind.WRITE, queue, int(at * S) - 5, int(at * S), Outcome.DONE, count=count, spans=((lane, 1, count),))
        for n, at in enumerate(times_s, 1)
    ]


def a_fault(from_s: float, to_s: float, **more: object) -> Fault:
    return Fault("kill any", "kill -9 of peer 1", int(from_s * S), int(to_s * S), **more)  # type: ignore[arg-type]


def test_the_longest_gap_is_reported_with_the_faults_in_it() -> None:
    ops = writes_at(1, 2, 5.5, 6, 9)
    (gap,) = gaps_of(ops, [a_fault(2.5, 4), a_fault(7, 8)], start_ns=0, end_ns=10 * S)
    assert (gap.gap_s, gap.at_s) == (3.5, 2.0)
    assert gap.during == "kill -9 of peer 1"


def test_a_gap_without_a_fault_is_reported_as_such() -> None:
    (gap,) = gaps_of(writes_at(1, 9), [], start_ns=0, end_ns=10 * S)
    assert gap.during == "no fault"


def test_a_queue_that_was_never_written_to_has_one_long_gap() -> None:
    refused = Op(1, 1, Kind.WRITE, "q", 0, 5, Outcome.REFUSED, code="OFFLINE")
    (gap,) = gaps_of([refused], [], start_ns=0, end_ns=3 * S)
    assert gap.gap_s == 3.0


def test_writes_resume_when_the_longest_pause_after_a_kill_ends() -> None:
    ops = writes_at(1.0, 1.99, 2.01, 3.2, 3.3, 3.4, 9.9)
    assert pause_after(ops, "q", 0, 2 * S) == pytest.approx(7.9)
    assert pause_after(ops[:-1], "q", 0, 2 * S) == pytest.approx(1.2)
    assert pause_after(ops, "q", 0, 2 * S, until_ns=5 * S) == pytest.approx(1.2)
    assert pause_after(ops, "q", 1, 2 * S) == 8.0


def test_only_kills_of_coordinators_are_timed() -> None:
    faults = [a_fault(1, 2), a_fault(2, 4, queue="q", lane=0)]
    (resumed,) = resumed_of(writes_at(1, 3), faults, start_ns=0)
    assert resumed.after_s == 1.0


def test_operations_are_counted_by_kind_and_outcome() -> None:
    ops = [
        *writes_at(1, 2),
        Op(3, 1, Kind.WRITE, "q", 0, 5, Outcome.REFUSED, code="OFFLINE"),
        Op(4, 1, Kind.READ, "q", 0),
    ]
    assert operations_of(ops) == {"write": {"done": 2, "refused": 1}, "read": {"unknown": 1}}
    assert refusals_of(ops) == {"q": {"OFFLINE": 1}}
    assert acknowledged_of(ops) == 4


def test_the_findings_kept_are_bounded_and_all_are_counted() -> None:
    findings = Findings()
    for number in range(KEPT_MAX + 7):
        findings.add(Anomaly.LOST, "q", str(number))
    assert (len(findings.kept), findings.counts[Anomaly.LOST]) == (KEPT_MAX, KEPT_MAX + 7)
    assert not findings.clean


# ---------------------------------------------------------------------- the picture


class Tags(HTMLParser):
    """Every tag that is opened is closed, in order."""

    VOID = frozenset({"meta", "rect", "line", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def a_timeline() -> tuple[list[Op], list[Band]]:
    ops = [*writes_at(0.5, 1.5, 1.6), Op(9, 1, Kind.READ, "q", 0, 2 * S, Outcome.UNKNOWN)]
    ops += [
        Op(n, 1, Kind.WRITE, "q", 0, S, Outcome.REFUSED, code=code) for n, code in ((10, "OFFLINE"), (11, "NOT_EQUAL"))
    ]
    return ops, [Band("kill any", "kill <peer 1> & co", 0.5, 1.0)]


def test_a_timeline_counts_messages_by_the_second() -> None:
    ops, bands = a_timeline()
    timeline = timeline_of(ops, bands, start_ns=0, end_ns=int(2.5 * S))
    assert timeline.acknowledged == {"q": [2, 4, 0]}
    assert timeline.unknown == [0, 0, 1]
    assert timeline.refused == [0, 1, 0]


def test_the_html_is_complete_and_self_contained() -> None:
    ops, bands = a_timeline()
    page = draw_html(timeline_of(ops, bands, start_ns=0, end_ns=3 * S), title="a <title>", verdict='{"a": 1}')
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("polyline") == 3
    assert tags.seen.count("rect") == 1
    assert "<title>" not in page.partition("<body>")[2].partition("</h1>")[0]
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(("name", "start"), [("plot.png", b"\x89PNG"), ("plot.html", b"<!doctype html>")])
def test_the_file_extension_decides_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    ops, bands = a_timeline()
    draw(timeline_of(ops, bands, start_ns=0, end_ns=3 * S), tmp_path / name, title="t", verdict="v")
    assert (tmp_path / name).read_bytes().startswith(start)


# ---------------------------------------------------------------------- parts of faults


def test_damage_changes_used_bytes_and_keeps_the_length(tmp_path: Path) -> None:
    before = b"\x07" * 5000 + bytes(3 << 20)
    file = tmp_path / "a.log"
    file.write_bytes(before)
    assert flip(file, random.Random(1), share=1.0) == 24
    after = file.read_bytes()
    assert len(after) == len(before)
    assert after[:5000] != before[:5000]
    assert after[5000:] == before[5000:]


def test_damage_finds_nothing_in_files_of_zeros(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(100))
    assert flip(tmp_path / "zeros", random.Random(1), share=1.0) == 0


def test_both_directions_of_a_pair() -> None:
    assert both([(1, 2)]) == [(1, 2), (2, 1)]
