"""One of three peers lost files while another was away. What the two others had acknowledged stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import avow
from avow.errors import Offline, Unknown
from avow.storage.replay import opening_of
from avow.storage.wal_records import SEGMENT_START
from avow.testing.cluster import LocalCluster, wait_until

FEW_S = 4.0


def active_segment(data: Path) -> Path:
    def sequence(path: Path) -> int:
        with path.open("rb") as file:
            opening, _ = opening_of(file.read(SEGMENT_START), file=path.name)
        return 0 if opening is None else opening.sequence

    return max((data / "wal").iterdir(), key=sequence)


def delete_active_segment(data: Path) -> None:
    active_segment(data).unlink()


def shorten_active_segment(data: Path) -> None:
    with active_segment(data).open("r+b") as file:
        file.truncate(16 * 1024)


def zero_active_segment(data: Path) -> None:
    path = active_segment(data)
    path.write_bytes(bytes(path.stat().st_size))


def nothing_repairs(cluster: LocalCluster, number: int) -> bool:
    status = cluster.ask(number, "/v1/cluster")
    return not status["metadata"]["repairing"] and not any(lane["repairing"] for lane in status["lanes"])


def values_of(cluster: LocalCluster) -> list[bytes]:
    with avow.connect_blocking(cluster.addresses) as client:
        return [value for batch in client.queue("kept").read(level="linearizable") for value in batch.values()]


@pytest.mark.parametrize("damage", [delete_active_segment, shorten_active_segment, zero_active_segment])
def test_acknowledged_writes_survive_the_loss_of_a_log_segment_on_one_peer(damage: Callable[[Path], None]) -> None:
    with LocalCluster(3) as cluster:
        with avow.connect_blocking(cluster.addresses) as client:
            client.create_queue("kept")
            client.queue("kept").enqueue_many([b"first %d" % number for number in range(5)])
            cluster.stop(1)
            for number in range(10):
                client.queue("kept").enqueue(b"second %d" % number)
        cluster.kill(2)
        cluster.kill(3)
        damage(cluster.data(3))
        cluster.restart(1, ready=False)
        cluster.restart(3, ready=False)
        # the peer that was away and the peer that lost its log must not decide anything together
        two = f"{cluster.api(1)},{cluster.api(3)}"
        with avow.connect_blocking(two, timeout_s=FEW_S) as client, pytest.raises((Offline, Unknown)):
            client.queue("kept").enqueue(b"by two")
        assert "segment" in (log := cluster.log(3).read_text()) or "lsn" in log
        cluster.restart(2, ready=False)
        cluster.wait_ready()
        found = values_of(cluster)
        assert found[:15] == [b"first %d" % n for n in range(5)] + [b"second %d" % n for n in range(10)]
        assert found[15:] in ([], [b"by two"])
        wait_until(lambda: nothing_repairs(cluster, 3), what="peer 3 has everything again")
        cluster.kill(2)  # so that peer 3 counts again
        with avow.connect_blocking(cluster.addresses) as client:
            client.queue("kept").enqueue(b"last")
        assert values_of(cluster)[:15] == found[:15]


def test_a_peer_that_is_alone_does_not_start_with_a_part_of_its_log() -> None:
    with LocalCluster(1) as cluster:
        with avow.connect_blocking(cluster.addresses) as client:
            client.create_queue("kept")
            client.queue("kept").enqueue_many([b"%d" % number for number in range(5)])
        cluster.kill(1)
        lost = active_segment(cluster.data(1))
        aside = lost.rename(lost.with_suffix(".aside"))
        with pytest.raises(Offline, match="IRREPARABLE"):
            cluster.restart(1)
        aside.rename(lost)
        cluster.restart(1)
        assert values_of(cluster) == [b"%d" % number for number in range(5)]
