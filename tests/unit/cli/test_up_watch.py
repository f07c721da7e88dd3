"""Which peers `avow up` restarts, when, and which it does not."""

from __future__ import annotations

from avow.cli.up import Watch


class Process:
    def __init__(self) -> None:
        self.alive, self.exit_code, self.pid, self.starts = True, None, 1, 0

    def start(self) -> None:
        self.alive, self.exit_code = True, None
        self.starts += 1
        self.pid += 1

    def end(self, exit_code: int) -> None:
        self.alive, self.exit_code = False, exit_code  # type: ignore[assignment]

    def log_tail(self) -> str:
        return "its log ends with: boom"


def watched(count: int = 2) -> tuple[Watch, dict[int, Process]]:
    processes = {number: Process() for number in range(1, count + 1)}
    watch = Watch(dict(processes))
    watch.begin(0.0)
    return watch, processes


def test_a_killed_peer_comes_back_after_five_seconds() -> None:
    watch, processes = watched()
    assert watch.tick(60.0) == []
    processes[2].end(-9)
    (died,) = watch.tick(61.0)
    assert (died.peer, died.event, died.text) == (
        2,
        "died",
        "peer 2 was killed by signal 9; it will be restarted in 5 s",
    )
    assert watch.tick(65.9) == []
    assert watch.returns_in_s(2, 64.0) == 2.0
    (back,) = watch.tick(66.0)
    assert (back.event, processes[2].starts, watch.returns_in_s(2, 66.0)) == ("restarted", 1, None)


def test_a_peer_that_ends_right_after_its_start_three_times_is_left_alone_with_its_log() -> None:
    watch, processes = watched()
    now, seen = 0.0, []
    for _ in range(3):
        processes[1].end(1)
        seen += watch.tick(now + 1)
        seen += watch.tick(now + 6)
        now += 6
    assert [event.event for event in seen] == ["died", "restarted", "died", "restarted", "abandoned"]
    assert "boom" in seen[-1].text
    assert watch.states[1].abandoned
    assert watch.tick(1000.0) == []


def test_a_long_run_resets_the_count_of_short_ones() -> None:
    watch, processes = watched()
    for now in (1.0, 8.0, 100.0, 107.0):
        processes[1].end(-9)
        assert [event.event for event in watch.tick(now)] == ["died"]
        assert [event.event for event in watch.tick(now + 5)] == ["restarted"]


def test_a_peer_that_was_removed_from_the_cluster_stays_down() -> None:
    watch, processes = watched()
    processes[2].end(1)
    (event,) = watch.tick(20.0, gone=frozenset({2}))
    assert event.event == "removed"
    assert watch.tick(100.0) == []
    assert processes[2].starts == 0
