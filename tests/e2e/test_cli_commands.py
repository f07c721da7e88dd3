"""Each command of the installed `avow` against a running cluster, with text and JSON output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.e2e.cli_cluster import AVOW, Up, as_json, avow

from avow.testing.cluster import wait_until
from avow.wire.versions import NEWEST


def done(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def created(up: Up, name: str, *flags: str) -> str:
    done(avow("queue", "create", name, *flags, api=up.addresses))
    return name


# ---------------------------------------------------------------------- queues


def test_creating_a_queue_again_does_nothing(up: Up) -> None:
    flags = ("queue", "create", "twice", "--lanes", "2", "--age", "7d", "--size", "10GB")
    first, second = done(avow(*flags, api=up.addresses)), done(avow(*flags, api=up.addresses))
    assert first == second == "queue twice exists: two-phase, 2 lanes, keeps messages for 7 d or up to 10.0 GB\n"
    assert [queue["name"] for queue in as_json("queue", "list", api=up.addresses)["queues"]].count("twice") == 1


def test_a_different_queue_under_the_same_name_is_refused(up: Up) -> None:
    created(up, "taken")
    run = avow("queue", "create", "taken", "--lanes", "5", api=up.addresses)
    assert run.returncode == 1
    assert run.stderr.startswith("avow: ALREADY_EXISTS: ")
    assert run.stderr.count("\n") == 1


def test_the_retention_of_a_queue_can_be_changed_and_the_rest_stays(up: Up) -> None:
    created(up, "kept", "--age", "1d", "--size", "1GB")
    changed = as_json("queue", "change", "kept", "--size", "none", "--passed", api=up.addresses)
    assert (changed["retention"]["age_s"], changed["retention"]["size_bytes"]) == (86_400, None)
    assert changed["retention"]["passed"] is True
    shown = done(avow("queue", "show", "kept", api=up.addresses))
    assert "keeps messages for 1 d or until every subscriber has read them" in shown


def test_a_queue_is_deleted_only_after_confirmation(up: Up) -> None:
    created(up, "doomed")
    assert avow("queue", "delete", "doomed", api=up.addresses).returncode == 2
    assert done(avow("queue", "delete", "doomed", "--yes", api=up.addresses)) == "queue doomed is deleted\n"
    run = avow("queue", "show", "doomed", api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: UNKNOWN_QUEUE: ")) == (1, True)


def test_trimmed_messages_are_gone_and_reported_as_trimmed(up: Up) -> None:
    created(up, "trimmed")
    avow("enqueue", "trimmed", "a", "b", "c", api=up.addresses)
    assert as_json("queue", "trim", "trimmed", "--upto", "2", api=up.addresses)["trimmed_to"] == 2
    assert done(avow("read", "trimmed", "--values-only", api=up.addresses)) == "c\n"
    run = avow("read", "trimmed", "--after", "0", api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: TRIMMED: ")) == (1, True)


# ---------------------------------------------------------------------- messages


def test_lines_of_stdin_become_messages_in_order(up: Up) -> None:
    created(up, "lines")
    text = "".join(f"line {number}\n" for number in range(5000))
    stored = as_json("enqueue", "lines", "--batch", "700", api=up.addresses, stdin=text)
    assert stored["written"] == [{"lane": 0, "first_version": 1, "last_version": 5000, "messages": 5000}]
    assert done(avow("read", "lines", "--values-only", "--level", "linearizable", api=up.addresses)) == text


def test_keys_choose_lanes_and_are_read_with_the_message(up: Up) -> None:
    created(up, "keyed", "--lanes", "3")
    text = "".join(f"k{number}=v{number}\n" for number in range(30))
    stored = as_json("enqueue", "keyed", "--key-separator", "=", api=up.addresses, stdin=text)
    assert sum(lane["messages"] for lane in stored["written"]) == 30
    assert len(stored["written"]) > 1
    found = [json.loads(line) for line in done(avow("read", "keyed", "--json", api=up.addresses)).splitlines()]
    assert sorted((message["key"], message["value"]) for message in found) == sorted(
        (f"k{number}", f"v{number}") for number in range(30)
    )


def test_a_wrong_expected_version_is_refused_with_the_actual_end(up: Up) -> None:
    created(up, "expected")
    done(avow("enqueue", "expected", "a", "--expected", "0", api=up.addresses))
    run = avow("enqueue", "expected", "b", "--expected", "0", "--json", api=up.addresses)
    assert run.returncode == 1
    assert json.loads(run.stderr)["error"]["cursor"] == 1
    assert done(avow("read", "expected", "--values-only", api=up.addresses)) == "a\n"


def test_read_stops_at_its_limits(up: Up) -> None:
    created(up, "some")
    done(avow("enqueue", "some", *"abcdef", api=up.addresses))
    assert done(avow("read", "some", "--after", "2", "--max", "3", api=up.addresses)) == "0:3  c\n0:4  d\n0:5  e\n"


def test_tail_prints_new_messages_and_its_subscriber_continues_there(up: Up) -> None:
    created(up, "tailed")
    done(avow("enqueue", "tailed", "a", "b", "c", api=up.addresses))
    environment = {**os.environ, "AVOW_API": up.addresses}
    first = done(avow("tail", "tailed", "--subscriber", "me", "--max", "2", "--values-only", api=up.addresses))
    assert first == "a\nb\n"
    assert as_json("subscriber", "show", "tailed", "me", api=up.addresses)["versions"] == {"0": 2}
    command = [AVOW, "tail", "tailed", "--subscriber", "me", "--max", "2", "--values-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as tail:
        done(avow("enqueue", "tailed", "d", api=up.addresses))
        assert tail.communicate(timeout=60)[0] == "c\nd\n"


def test_a_pub_sub_queue_is_written_and_read(up: Up) -> None:
    created(up, "shared", "--strategy", "pub-sub")
    done(avow("enqueue", "shared", "a", "b", api=up.addresses))
    wait_until(
        lambda: avow("read", "shared", "--values-only", api=up.addresses).stdout == "a\nb\n", what="both are there"
    )


# ---------------------------------------------------------------------- subscribers, peers, status


def test_a_cursor_moves_forward_and_only_a_reset_moves_it_back(up: Up) -> None:
    created(up, "cursors")
    done(avow("enqueue", "cursors", *"abcde", api=up.addresses))
    for arguments, version in ((("move", "3"), 3), (("move", "1"), 3), (("reset", "start"), 0), (("move", "end"), 5)):
        action, place = arguments
        moved = as_json("subscriber", action, "cursors", "audit", place, api=up.addresses)
        assert moved["versions"].get("0", 0) == version, arguments
    assert "audit" in done(avow("subscriber", "list", "cursors", api=up.addresses))
    done(avow("subscriber", "remove", "cursors", "audit", api=up.addresses))
    run = avow("subscriber", "show", "cursors", "audit", api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: UNKNOWN_SUBSCRIBER: ")) == (1, True)


def test_a_hold_protects_later_messages_from_trimming(up: Up) -> None:
    created(up, "held")
    done(avow("enqueue", "held", *"abcde", api=up.addresses))
    done(avow("subscriber", "move", "held", "slow", "2", "--hold", api=up.addresses))
    assert as_json("queue", "trim", "held", "--upto", "4", api=up.addresses)["trimmed_to"] == 2


def test_status_shows_peers_lanes_and_subscribers(up: Up) -> None:
    created(up, "seen")
    done(avow("enqueue", "seen", *"abc", api=up.addresses))
    done(avow("subscriber", "move", "seen", "eye", "1", api=up.addresses))
    found = as_json("status", api=up.addresses)
    assert [(peer["number"], peer["up"], peer["state"]) for peer in found["peers"]] == [
        (number, True, "ready") for number in (1, 2, 3)
    ]
    assert len({peer["pid"] for peer in found["peers"]} - {None}) == 3
    (lane,) = [lane for lane in found["lanes"] if lane["queue"] == "seen"]
    assert (lane["end"], lane["coordinator"] in (1, 2, 3), lane["voters"]) == (3, True, [1, 2, 3])
    (subscriber,) = [one for one in found["subscribers"] if one["queue"] == "seen"]
    assert (subscriber["name"], subscriber["lag"]) == ("eye", 2)
    text = done(avow("status", api=up.addresses))
    assert "3 peers, 3 up" in text
    assert "eye" in text


def test_peers_are_listed_and_the_command_for_one_more_is_printed(up: Up) -> None:
    assert [peer["state"] for peer in as_json("peer", "list", api=up.addresses)["peers"]] == ["ready"] * 3
    command = as_json("peer", "add", api=up.addresses)["command"]
    assert command[:2] == ["avow", "serve"]
    assert command[-2:] == ["--join", up.addresses.split(",")[0]]


def test_the_upgrade_of_a_new_cluster_is_finished(up: Up) -> None:
    found = as_json("upgrade", "status", api=up.addresses)
    assert (found["level"], found["possible"]) == (NEWEST, NEWEST)
    assert [peer["newest"] for peer in found["peers"]] == [NEWEST] * 3
    assert f"the cluster uses version {NEWEST} of the protocol" in done(avow("upgrade", "status", api=up.addresses))
    assert as_json("upgrade", "finish", api=up.addresses) == {"level": NEWEST}


def test_doctor_reports_a_healthy_cluster(up: Up) -> None:
    found = as_json("doctor", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", api=up.addresses)
    cluster = [finding for finding in found["findings"] if finding["check"] in ("cluster", "lanes")]
    assert [finding["verdict"] for finding in cluster] == ["ok", "ok"]


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("queue", "list"), ("enqueue", "orders", "x"), ("read", "orders"), ("peer", "remove", "1", "--yes")],
)
def test_an_unreachable_cluster_is_reported_at_once_with_advice(arguments: tuple[str, ...]) -> None:
    run = avow(*arguments, api="http://127.0.0.1:1")
    assert run.returncode == 4
    assert run.stderr.startswith(
        "avow: OFFLINE: no peer answered (http://127.0.0.1:1: connection refused); nothing was"
    )
    assert "avow up" in run.stderr


def test_a_dead_address_among_live_ones_does_no_harm(up: Up) -> None:
    addresses = f"http://127.0.0.1:1,{up.addresses}"
    created(up, "passed-over")
    done(avow("enqueue", "passed-over", "x", api=addresses))
    assert done(avow("read", "passed-over", "--values-only", api=addresses)) == "x\n"


@pytest.mark.parametrize("arguments", [("read", "nowhere"), ("enqueue", "nowhere", "x"), ("tail", "nowhere")])
def test_a_missing_queue_is_refused(up: Up, arguments: tuple[str, ...]) -> None:
    run = avow(*arguments, api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: UNKNOWN_QUEUE: ")) == (1, True), run.stderr


def test_wrong_usage_and_refusal_have_different_exit_codes(up: Up) -> None:
    for arguments in (("enqueue",), ("queue", "change", "x"), ("tail", "x", "--after", "1", "--subscriber", "y")):
        assert avow(*arguments, api=up.addresses).returncode == 2


def test_closing_the_output_early_shows_no_traceback(up: Up) -> None:
    created(up, "long")
    done(avow("enqueue", "long", api=up.addresses, stdin="x" * 100 + "\n" + "y\n" * 200_000))
    environment = {**os.environ, "AVOW_API": up.addresses}
    run = subprocess.run(
        ["bash", "-c", f"{AVOW} read long --values-only | head -n 1"], capture_output=True, text=True, env=environment
    )
    assert run.stdout == "x" * 100 + "\n"
    assert "Traceback" not in run.stderr


# ---------------------------------------------------------------------- last, since it changes the members


def test_the_printed_command_starts_a_peer_that_joins_and_remove_takes_it_out_again(up: Up, tmp_path: Path) -> None:
    command = as_json("peer", "add", "--data", str(tmp_path / "joined"), api=up.addresses)["command"]
    with subprocess.Popen([AVOW, *command[1:]], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            number = json.loads(process.stdout.readline())["number"]
            wait_until(lambda: _state(up, number) == "ready", timeout_s=60, what="it votes")
            removed = avow("peer", "remove", str(number), "--yes", api=up.addresses)
            assert done(removed).startswith(f"peer {number} is gone")
            assert _state(up, number) == "gone"
        finally:
            process.terminate()
            process.wait(60)
    assert [peer["number"] for peer in as_json("status", api=up.addresses)["peers"]] == [1, 2, 3]


def _state(up: Up, number: int) -> str | None:
    peers = as_json("peer", "list", api=up.addresses)["peers"]
    return next((peer["state"] for peer in peers if peer["number"] == number), None)


def test_removing_an_unknown_peer_is_refused(up: Up) -> None:
    run = avow("peer", "remove", "99", "--yes", api=up.addresses)
    assert (run.returncode, run.stderr.startswith("avow: UNKNOWN_PEER: ")) == (1, True), run.stderr


@pytest.mark.parametrize("arguments", [("tail", "quiet", "--after", "0"), ("status", "--watch"), ("enqueue", "quiet")])
def test_ctrl_c_ends_a_long_command_without_a_traceback(up: Up, arguments: tuple[str, ...]) -> None:
    created(up, "quiet")
    done(avow("enqueue", "quiet", "first", api=up.addresses))
    pipe, environment = subprocess.PIPE, {**os.environ, "AVOW_API": up.addresses}
    with subprocess.Popen(
        [AVOW, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if arguments[0] == "enqueue":
            process.stdin.write("typed\n")
            process.stdin.flush()
            wait_until(lambda: "typed" in avow("read", "quiet", api=up.addresses).stdout, what="the line is stored")
        else:
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read() if process.stderr is not None else ""
        assert process.wait(60) == 130
    assert "Traceback" not in errors
    assert errors.startswith("avow: before this, 1 message stored") if arguments[0] == "enqueue" else errors == ""


def test_watching_prints_an_object_per_interval(up: Up) -> None:
    command = [AVOW, "status", "--watch", "--json", "--interval", "0.2"]
    environment = {**os.environ, "AVOW_API": up.addresses}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
    assert [len(look["peers"]) for look in looks] == [3, 3]
