"""Attempts, repetitions and aborts of a job against a real peer, without a JVM: the sink's own functions are called the
way Spark calls them, in every order in which it may."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.spark.holding_proxy import HOST, HoldingProxy

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import Incomplete, InvalidRequest, UnknownQueue, UnknownTransaction
from avow.queue.key_to_lane import lane_for
from avow.spark.sink.options import SinkOptions
from avow.spark.sink.routing import Part
from avow.spark.sink.writers import Staged, Staging, discard, publish, stage
from avow.testing.cluster import LocalCluster, wait_until


@pytest.fixture(scope="module")
def client() -> Iterator[BlockingClient]:
    with LocalCluster(1) as cluster, connect_blocking(cluster.addresses) as made:
        made.servers = cluster.addresses  # type: ignore[attr-defined]
        yield made


class Job:
    """One job that writes to its own queue. `rows` have the keys 0, 1, 2, ... and go to both lanes."""

    def __init__(self, client: BlockingClient, queue: str, *, name: str = "stream:q:1", deadline_s: float = 60) -> None:
        self.client, self.queue, self.name = client, queue, name
        client.create_queue(queue, lanes=2)
        servers = client.servers  # type: ignore[attr-defined]
        self.options = SinkOptions(servers=servers, topic=queue, stage_deadline_s=deadline_s)

    def attempt(self, *numbers: int) -> Staged:
        return stage(iter([rows(*numbers)]), options=self.options, name=self.name)

    def commit(self, *messages: Staged) -> None:
        publish(messages, options=self.options)

    def abort(self, *messages: Staged | None) -> None:
        discard(messages, options=self.options)

    def visible(self) -> list[int]:
        return [int(value) for batch in self.client.queue(self.queue).read() for value in batch.values()]


def rows(*numbers: int) -> pa.RecordBatch:
    texts = [str(number) for number in numbers]
    return pa.RecordBatch.from_arrays([pa.array(texts), pa.array(texts)], names=["value", "key"])


def in_lane(lane: int, count: int) -> list[int]:
    return [number for number in range(100) if lane_for(b"%d" % number, 2) == lane][:count]


def test_only_the_attempts_that_spark_chose_are_visible(client: BlockingClient) -> None:
    job = Job(client, "chosen")
    lost, chosen, other = job.attempt(1, 2, 3), job.attempt(1, 2, 3), job.attempt(4, 5)
    assert job.visible() == []
    job.commit(chosen, other)
    assert sorted(job.visible()) == [1, 2, 3, 4, 5]
    assert lost.part != chosen.part


def test_a_repeated_job_stages_nothing_and_publishes_nothing(client: BlockingClient) -> None:
    job = Job(client, "repeated")
    job.commit(job.attempt(*range(20)))
    again = job.attempt(*range(20))
    assert again.messages == {}
    assert again.decided == {"repeated": [0, 1]}
    job.commit(again)
    assert sorted(job.visible()) == list(range(20))


def test_a_job_over_two_lanes_is_published_in_both_or_in_none(client: BlockingClient) -> None:
    job = Job(client, "whole")
    first = job.attempt(*range(20))
    counts = dict(first.messages["whole"])
    with pytest.raises(Incomplete):
        job.commit(Staged(first.name, first.part, {"whole": {**counts, 1: counts[1] + 1}}))
    assert job.visible() == []
    job.commit(first)
    assert sorted(job.visible()) == list(range(20))
    again = job.attempt(*range(20))
    assert (again.messages, again.decided) == ({}, {"whole": [0, 1]})
    job.commit(again)
    assert sorted(job.visible()) == list(range(20))


def test_an_attempt_staged_before_another_driver_published_stays_invisible(client: BlockingClient) -> None:
    job = Job(client, "zombie")
    of_the_dead, of_the_living = job.attempt(1, 2), job.attempt(1, 2)
    job.commit(of_the_living)
    job.commit(of_the_dead)
    assert sorted(job.visible()) == [1, 2]


def test_an_abort_discards_its_parts_and_the_name_can_be_used_again(client: BlockingClient) -> None:
    job = Job(client, "aborted")
    first = job.attempt(1, 2)
    job.abort(first, None)
    with pytest.raises(UnknownTransaction) as caught:
        job.commit(first)
    assert "no queue was published before" in "".join(caught.value.__notes__)
    job.commit(job.attempt(1, 2))
    assert sorted(job.visible()) == [1, 2]


def test_an_abort_after_a_commit_undoes_nothing(client: BlockingClient) -> None:
    job = Job(client, "undone")
    first = job.attempt(1, 2)
    job.commit(first)
    job.abort(first)
    assert sorted(job.visible()) == [1, 2]


def test_rows_that_expired_are_not_published_in_part(client: BlockingClient) -> None:
    job = Job(client, "expired", deadline_s=0.2)
    late = job.attempt(*in_lane(0, 3))

    def expired() -> bool:
        try:
            job.commit(Staged(late.name, late.part, {"expired": {0: 999}}))
        except Incomplete:
            return False  # it is there still: what does not add up changes nothing
        except UnknownTransaction:
            return True
        return False

    wait_until(expired, what="the deadline")
    on_time = job.attempt(*in_lane(0, 5))
    with pytest.raises((Incomplete, UnknownTransaction)):
        job.commit(late, on_time)
    assert job.visible() == []


def test_an_attempt_that_fails_discards_its_rows(client: BlockingClient) -> None:
    job = Job(client, "failed")

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["x" * 1_000] * 3_000), pa.array(["k"] * 3_000)], ["value", "key"])
        raise RuntimeError("the task's own input failed")

    with pytest.raises(RuntimeError, match="own input"):
        stage(interrupted(), options=job.options, name=job.name)
    with pytest.raises(UnknownTransaction):
        job.commit(Staged(job.name, 5, {"failed": {lane_for(b"k", 2): 1}}))


def test_a_failed_attempt_is_discarded_after_its_writes_in_flight_were_answered() -> None:
    """Otherwise the peer could take such a write after the discard, and keep it until it expires."""
    with (
        LocalCluster(1, settings={"advertise": HOST}) as cluster,
        HoldingProxy(port=int(cluster.api(1).rpartition(":")[2])) as proxy,
        connect_blocking(proxy.url) as client,
    ):
        client.create_queue("slow")
        options = SinkOptions(servers=proxy.url, topic="slow")
        staging = Staging(options, name="stream:q:1", part=5)
        assert staging.lanes_of("slow") == 1
        proxy.hold("/messages?lane=", what="request")
        staging.put(Part("slow", 0, rows(1, 2)))
        assert proxy.held.wait(60)
        release = threading.Timer(0.3, proxy.release)
        release.start()
        failure = RuntimeError("the task's own input failed")
        staging.discard(failure)
        staging.close()
        release.join()
        assert proxy.passed.is_set()
        assert not hasattr(failure, "__notes__")
        for _ in range(20):  # each of them would find the write
            client.queue("slow").enqueue(b"another")
            with pytest.raises(UnknownTransaction):
                publish([Staged("stream:q:1", 5, {"slow": {0: 1}})], options=options)


def test_messages_of_a_lane_keep_the_order_of_the_rows(client: BlockingClient) -> None:
    job = Job(client, "ordered")
    pad = "0" * 2_000

    def many() -> Iterator[pa.RecordBatch]:
        for first in range(0, 12_000, 1_000):
            texts = pa.array([pad + str(number) for number in range(first, first + 1_000)])
            yield pa.RecordBatch.from_arrays([texts, pa.array(["k"] * 1_000)], names=["value", "key"])

    job.commit(stage(many(), options=job.options, name=job.name))
    assert job.visible() == list(range(12_000))


def test_a_queue_without_staged_writes_is_refused_with_advice(client: BlockingClient) -> None:
    servers = client.servers  # type: ignore[attr-defined]
    client.create_queue("news", strategy="pub-sub")
    with pytest.raises(InvalidRequest, match="two-phase"):
        stage(iter([rows(1)]), options=SinkOptions(servers=servers, topic="news"), name="n")
    with pytest.raises(UnknownQueue):
        stage(iter([rows(1)]), options=SinkOptions(servers=servers, topic="absent"), name="n")


def test_an_empty_partition_opens_no_connection() -> None:
    options = SinkOptions(servers="http://127.0.0.1:9", topic="orders")
    assert stage(iter([]), options=options, name="n").messages == {}
