"""`avow enqueue` and `avow tail` over channels: streams, subscribers, members, observers, while peers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from tests.e2e.cli_cluster import AVOW, Up, as_json, avow

from avow.testing.cluster import LocalCluster, wait_until


def done(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def created(addresses: str, name: str, *flags: str) -> str:
    done(avow("queue", "create", name, *flags, api=addresses))
    return name


def started(*arguments: str, api: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "AVOW_API": api}
    pipe = subprocess.PIPE
    return subprocess.Popen([AVOW, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_typed_lines_are_stored_one_by_one_and_counted_in_the_summary(up: Up) -> None:
    created(up.addresses, "typed")
    with started("enqueue", "typed", "--json", api=up.addresses) as process:
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(f"line {number}\n")
            process.stdin.flush()
            wait_until(
                lambda line=f"line {number}": line in avow("read", "typed", api=up.addresses).stdout,  # type: ignore[misc]
                what="the line is stored before the next is typed",
            )
        output, _ = process.communicate(timeout=60)
    assert json.loads(output) == {
        "queue": "typed",
        "messages": 3,
        "written": [{"lane": 0, "first_version": 1, "last_version": 3, "messages": 3}],
    }


def test_an_invalid_line_is_refused_and_those_before_it_are_stored(up: Up) -> None:
    created(up.addresses, "wrong")
    run = avow("enqueue", "wrong", "--key-separator", "=", api=up.addresses, stdin="a=1\nb=2\nno key\n")
    assert run.returncode == 1
    assert run.stderr.startswith("avow: before this, ") or "no separator '='" in run.stderr
    stored = done(avow("read", "wrong", "--values-only", api=up.addresses)).split()
    assert stored in ([], ["1", "2"])


def test_a_stream_survives_the_peers_that_receive_it() -> None:
    with LocalCluster(3) as cluster:
        created(cluster.addresses, "stream", "--lanes", "2")
        with started("enqueue", "stream", "--json", "--batch", "50", api=cluster.addresses) as process:
            assert process.stdin is not None
            for number in range(3_000):
                process.stdin.write(f"{number}\n")
                if number in (1_000, 2_000):
                    process.stdin.flush()
                    cluster.kill(number // 1_000)
                    cluster.restart(number // 1_000)
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert json.loads(output)["messages"] == 3_000
        found = done(avow("read", "stream", "--values-only", api=cluster.addresses)).split()
        assert sorted(map(int, found)) == list(range(3_000))


def test_showing_a_subscriber_takes_nothing_from_it(up: Up) -> None:
    created(up.addresses, "looked")
    done(avow("enqueue", "looked", *"abcd", api=up.addresses))
    done(avow("subscriber", "move", "looked", "s", "1", api=up.addresses))
    flags = ("tail", "looked", "--subscriber", "s", "--max", "2", "--values-only")
    for _ in range(2):
        assert done(avow(*flags, "--no-commit", api=up.addresses)) == "b\nc\n"
    assert done(avow(*flags, api=up.addresses)) == "b\nc\n"
    assert done(avow("tail", "looked", "--subscriber", "s", "--max", "1", "--values-only", api=up.addresses)) == "d\n"


def test_a_second_reader_takes_over_and_the_first_reports_it_and_ends(up: Up) -> None:
    created(up.addresses, "contested")
    done(avow("enqueue", "contested", "a", api=up.addresses))
    with started("tail", "contested", "--subscriber", "s", "--values-only", api=up.addresses) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "a\n"
        with started("tail", "contested", "--subscriber", "s", "--values-only", api=up.addresses) as second:
            output = first.communicate(timeout=60)[1]
            assert (first.returncode, output.startswith("avow: FENCED: ")) == (1, True), output
            done(avow("enqueue", "contested", "b", api=up.addresses))
            assert second.stdout is not None
            assert second.stdout.readline() == "b\n"
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == 130


def test_each_message_is_printed_by_exactly_one_member(up: Up) -> None:
    created(up.addresses, "shared-out", "--lanes", "4")
    tails = [
        started("tail", "shared-out", "--subscriber", "s", "--member", name, "--values-only", api=up.addresses)
        for name in ("a", "b")
    ]
    wait_until(lambda: _members(up, "shared-out", "s"), what="the subscriber is read")
    text = "".join(f"k{number}=v{number}\n" for number in range(40))
    done(avow("enqueue", "shared-out", "--key-separator", "=", api=up.addresses, stdin=text))
    wait_until(lambda: _passed(up, "shared-out", "s") == 40, what="all are committed")
    printed = []
    for tail in tails:
        tail.send_signal(signal.SIGINT)
        printed += tail.communicate(timeout=60)[0].split()
    assert sorted(printed) == sorted(f"v{number}" for number in range(40))


def _members(up: Up, queue: str, name: str) -> bool:
    found = as_json("subscriber", "list", queue, api=up.addresses)["subscribers"]
    return any(one["name"] == name and len(one["versions"]) == 4 for one in found)


def _passed(up: Up, queue: str, name: str) -> int:
    return sum(as_json("subscriber", "show", queue, name, api=up.addresses)["versions"].values())


def test_an_observer_sees_what_peers_send_each_other(up: Up) -> None:
    created(up.addresses, "watched", "--strategy", "pub-sub")
    with started("tail", "watched", "--observe", "--json", api=up.addresses) as observer:
        wait_until(lambda: _observers(up) > 0, what="the channel is open")
        done(avow("enqueue", "watched", "a", "b", api=up.addresses))
        assert observer.stdout is not None
        events = [json.loads(observer.stdout.readline())]
        while events[-1]["event"] != "committed":
            events.append(json.loads(observer.stdout.readline()))
        observer.send_signal(signal.SIGINT)
        assert observer.wait(60) == 130
    assert events[0]["event"] == "enqueued"
    assert (events[0]["first_version"], events[0]["values_base64"]) == (1, ["YQ==", "Yg=="])
    assert {event["event"] for event in events[1:-1]} == {"stored"}
    assert events[-1]["upto_version"] == 2


def _observers(up: Up) -> int:
    """Channels that are open at any peer."""
    text = "".join(_metrics(address) for address in up.addresses.split(","))
    lines = [line for line in text.splitlines() if line.startswith("avow_channels") and 'role="observer"' in line]
    return sum(int(float(line.split()[-1])) for line in lines)


def _metrics(address: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_contradictory_flags_are_wrong_usage(up: Up) -> None:
    for flags in (
        ("--member", "m"),
        ("--no-commit",),
        ("--subscriber", "s", "--lane", "0"),
        ("--observe", "--subscriber", "s"),
    ):
        assert avow("tail", "x", *flags, api=up.addresses).returncode == 2
