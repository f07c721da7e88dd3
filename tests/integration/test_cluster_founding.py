"""A cluster that was founded is not founded again by peers whose folders are empty."""

from __future__ import annotations

import shutil

import pytest

import avow
from avow.errors import Offline
from avow.testing.cluster import LocalCluster, wait_until


def test_two_founders_without_their_folders_do_not_form_an_empty_cluster() -> None:
    with LocalCluster(3) as cluster:
        with avow.connect_blocking(cluster.addresses) as client:
            client.create_queue("kept")
            client.queue("kept").enqueue(b"one")
        cluster.stop_all()
        for number in (1, 2):
            cluster.data(number).rename(cluster.folder / f"not-mounted-{number}")
            cluster.restart(number, ready=False)
        for number in (1, 2):
            wait_until(
                lambda number=number: cluster.ask(number, "/v1/cluster")["waiting_for_founders"] == [3],  # type: ignore[misc]
                what=cluster.process(number).log_tail,
            )
            with pytest.raises(Offline, match="503"):
                cluster.ask(number, "/readyz")
        cluster.restart(3, ready=False)
        wait_until(lambda: "folder was emptied" in cluster.log(3).read_text(), what="peer 3 refuses them")
        assert cluster.ask(1, "/v1/cluster")["waiting_for_founders"] == [3]
        for number in (1, 2):
            cluster.kill(number)
            shutil.rmtree(cluster.data(number))
            (cluster.folder / f"not-mounted-{number}").rename(cluster.data(number))
            cluster.restart(number, ready=False)
        cluster.wait_ready()
        with avow.connect_blocking(cluster.addresses) as client:
            assert [value for batch in client.queue("kept").read(level="linearizable") for value in batch.values()] == [
                b"one"
            ]
