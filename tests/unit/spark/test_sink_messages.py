"""The messages from tasks to the driver, and what the driver refuses before anything is sent."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from avow import limits
from avow.errors import InvalidRequest, TooMany
from avow.spark.sink.options import SinkOptions
from avow.spark.sink.writers import Staged, batch_writer, parts_of, publish, stream_writer

NOBODY = {"servers": "http://127.0.0.1:9", "topic": "orders"}  # never asked in these tests
VALUE = StructType([StructField("value", BinaryType())])


def test_the_parts_of_all_tasks_are_published_lane_by_lane() -> None:
    one = Staged("stream:q:1", 11, {"orders": {0: 3, 1: 1}})
    other = Staged("stream:q:1", 22, {"orders": {1: 2}, "bills": {0: 5}})
    again = Staged("stream:q:1", 33, {}, {"orders": [0]})
    expected = {"orders": {0: {11: 3}, 1: {11: 1, 22: 2}}, "bills": {0: {22: 5}}}
    assert parts_of([one, None, other, again]) == expected


def test_a_commit_message_survives_the_transport_to_the_driver() -> None:
    message = Staged("batch:nightly:3", 7, {"orders": {0: 3}}, {"orders": [1]})
    assert pickle.loads(pickle.dumps(message)) == message


def test_nothing_is_published_when_nothing_was_staged() -> None:
    publish([None, Staged("stream:q:1", 7)], options=SinkOptions(servers="http://127.0.0.1:9"))


def test_more_tasks_than_a_publish_can_name_are_refused_before_anything_is_published() -> None:
    messages = [Staged("n", number, {"orders": {0: 1}}) for number in range(limits.TRANSACTION_PARTS_COUNT_MAX + 1)]
    with pytest.raises(TooMany, match="Coalesce"):
        publish(messages, options=SinkOptions(servers="http://127.0.0.1:9"))


def test_overwriting_is_refused_with_the_mode_to_use() -> None:
    with pytest.raises(InvalidRequest, match=r'mode\("append"\)'):
        batch_writer(NOBODY, VALUE, True)
    with pytest.raises(InvalidRequest, match=r'outputMode\("append"\)'):
        stream_writer(NOBODY, VALUE, True)


def test_a_batch_is_not_committed_under_another_number() -> None:
    writer = stream_writer(NOBODY, VALUE, False)
    with pytest.raises(InvalidRequest, match="batch 8 is committed"):
        writer.commit([Staged("stream:q:7", 1, {"orders": {0: 1}})], 8)


def test_a_stream_writer_outside_of_a_stream_writes_nothing() -> None:
    with pytest.raises(InvalidRequest, match="foreachBatch"):
        stream_writer(NOBODY, VALUE, False).write(iter(()))
