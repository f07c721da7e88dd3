"""Every transcript in this folder is up to date, and the interpreter detects one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow_lab.transcripts.pubsub import PubSubBench
from avow_lab.transcripts.text import Words
from avow_lab.transcripts.transcript import TranscriptError, difference, replay
from avow_lab.transcripts.two_phase import TwoPhaseBench

GUIDE = Path(__file__).parents[2] / "docs" / "transcripts.md"
FILES = sorted(Path(__file__).parent.glob("*.txt"))

SHORT = """\
# Three peers; the first one takes over.
cluster peers=1,2,3
----
ok

claim 1 quiet
----
1 probes for a coordinator
1 claims with ballot 1.1
1 coordinates with ballot 1.1
1 moves its cursor to 1
2 moves its cursor to 1
3 moves its cursor to 1
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_is_up_to_date(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    if request.config.getoption("--rewrite", default=False):
        path.write_text(replay(text))
        return
    found = difference(text, name=path.name)
    assert not found, f"{path.name} shows something else now (--rewrite records it):\n{found}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript_starts_with_a_paragraph_that_describes_it(path: Path) -> None:
    opening = path.read_text().split("\n\n", 1)[0].splitlines()
    assert len(opening) >= 3
    assert all(line.startswith("# ") for line in opening)


def test_every_named_scenario_is_there() -> None:
    numbers = {int(path.stem.split("-", 1)[0]) for path in FILES}
    assert numbers == {*range(1, 23), *range(30, 35)}


def test_the_guide_lists_every_scenario_and_every_command() -> None:
    guide = GUIDE.read_text()
    assert not [path.name for path in FILES if f"(../tests/scenarios/{path.name})" not in guide]
    benches = (TwoPhaseBench(Words("cluster")), PubSubBench(Words("cluster")))
    assert not [name for bench in benches for name in bench.commands if f"`{name}" not in guide]


def test_a_transcript_that_holds_has_no_difference() -> None:
    assert difference(SHORT) == ""
    assert replay(SHORT) == SHORT


def test_a_wrong_expectation_is_reported_with_both_lines() -> None:
    wrong = SHORT.replace("coordinates with ballot 1.1", "coordinates with ballot 9.1")
    found = difference(wrong, name="short.txt")
    assert "-1 coordinates with ballot 9.1" in found
    assert "+1 coordinates with ballot 1.1" in found
    assert "short.txt" in found


def test_output_that_is_missing_or_too_much_is_a_difference() -> None:
    assert "+1 moves its cursor to 1" in difference(SHORT.replace("1 moves its cursor to 1\n", ""))
    assert "-3 moves its cursor to 2" in difference(SHORT + "3 moves its cursor to 2\n")


def test_rewriting_replaces_the_output_and_keeps_the_comments() -> None:
    emptied = "# Three peers; the first one takes over.\ncluster peers=1,2,3\n\nclaim 1 quiet\n"
    assert replay(emptied) == SHORT


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("jump 1", "there is no command jump"),
        ("enqueue 1", "lacks values="),
        ("enqueue 9 values=A", "there is no peer 9"),
        ("sync 1 twice", "twice means nothing here"),
        ("crash two", "two is not a number"),
        ("crash 1 torn=1", "only 0 operations wait"),
        ("retry 1 w1", "there is no write w1"),
        ("restart 1", "peer 1 is up"),
        ("advance 70", "steps of 50 ms"),
    ],
)
def test_a_line_that_cannot_be_followed_names_itself_and_its_place(line: str, says: str) -> None:
    with pytest.raises(TranscriptError, match=says) as raised:
        replay(f"cluster peers=1,2,3\n\n{line}\n")
    assert "line 3" in str(raised.value)
    assert line in str(raised.value)


def test_a_command_before_the_cluster_is_refused() -> None:
    with pytest.raises(TranscriptError, match="before `cluster`"):
        replay("sync 1\n")
