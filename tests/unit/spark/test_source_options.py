"""Options of the source: Kafka's names and meanings, and errors that name the wrong option."""

from __future__ import annotations

import pytest

from avow.errors import InvalidRequest
from avow.spark.source.options import EARLIEST, LATEST, Bound, batch_options, include_headers, stream_options

PLAIN = {"servers": "http://127.0.0.1:7401", "subscribe": "orders"}


def test_a_batch_reads_everything_and_a_stream_starts_at_the_end() -> None:
    assert (batch_options(PLAIN).start, batch_options(PLAIN).end) == (Bound(EARLIEST), Bound(LATEST))
    assert stream_options(PLAIN).start == Bound(LATEST)
    assert batch_options(PLAIN).fail_on_data_loss
    assert not batch_options(PLAIN).include_headers


def test_names_of_options_are_read_in_any_case() -> None:
    found = stream_options({"SERVERS": "a:1", "subscribepattern": "ord.*", "maxoffsetspertrigger": "5"})
    assert (found.servers, found.pattern, found.trigger_rows_max) == ("a:1", "ord.*", 5)
    assert include_headers({"IncludeHeaders": "TRUE"})


def test_queues_are_listed_once_each_in_the_given_order() -> None:
    assert batch_options({**PLAIN, "subscribe": " b, a,b ,"}).queues == ("b", "a")


def test_assign_names_lanes() -> None:
    found = batch_options({"servers": "a:1", "assign": '{"orders": [1, 0, 1]}'})
    assert found.assign == {"orders": (0, 1)}


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"startingOffsets": "Earliest"}, Bound(EARLIEST)),
        ({"startingOffsets": '{"orders":{"0":23,"1":-2}}'}, Bound(EARLIEST, {"orders": {0: 23, 1: EARLIEST}})),
        ({"startingTimestamp": "1000"}, Bound(1000, by_time=True)),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":5}}'}, Bound(0, {"orders": {0: 5}}, by_time=True)),
    ],
)
def test_a_start_has_four_forms(given: dict[str, str], bound: Bound) -> None:
    assert batch_options({**PLAIN, **given}).start == bound
    assert stream_options({**PLAIN, **given}).start == bound


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"endingOffsets": "latest"}, Bound(LATEST)),
        ({"endingOffsets": '{"orders":{"0":23,"1":-1}}'}, Bound(LATEST, {"orders": {0: 23, 1: LATEST}})),
        ({"endingTimestamp": "1000"}, Bound(1000, by_time=True)),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":5}}'}, Bound(LATEST, {"orders": {0: 5}}, by_time=True)),
    ],
)
def test_an_end_has_four_forms(given: dict[str, str], bound: Bound) -> None:
    assert batch_options({**PLAIN, **given}).end == bound


def test_lanes_that_are_not_named_end_at_the_latest_also_in_a_batch_that_names_starts() -> None:
    found = batch_options({**PLAIN, "startingOffsets": '{"orders":{"0":23}}'})
    assert found.start.everywhere == EARLIEST


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kafka.bootstrap.servers": "a:1"}, "servers"),
        ({"startingOffset": "latest"}, "startingOffset"),
        ({"servers": " "}, "servers"),
        ({"subscribe": ""}, "subscribePattern"),
        ({"subscribePattern": "a.*"}, "subscribe and subscribePattern"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingOffsets and startingTimestamp"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":[3]}'}, "startingOffsets"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets"),
        ({"startingTimestamp": "-5"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-5}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"includeHeaders": "1"}, "includeHeaders"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition"),
        ({"subscriber": "billing"}, "subscriber"),
    ],
)
def test_errors_of_a_batch_read_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest, match="nothing was read") as caught:
        batch_options({**PLAIN, **given})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5s"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "5 weeks"}, "maxTriggerDelay"),
    ],
)
def test_errors_of_a_stream_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest, match="nothing was read") as caught:
        stream_options({**PLAIN, **given})
    assert named in str(caught.value)


def test_an_invalid_pattern_and_an_empty_assignment_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="subscribePattern"):
        batch_options({"servers": "a:1", "subscribePattern": "("})
    with pytest.raises(InvalidRequest, match="assign"):
        batch_options({"servers": "a:1", "assign": '{"orders": []}'})


def test_trigger_limits_are_ignored_by_a_batch_and_listed() -> None:
    found = batch_options({**PLAIN, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2"})
    assert found.ignored == ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("15m", 900.0), ("2 h", 7200.0), ("3", 3.0)])
def test_a_delay_is_written_as_spark_writes_durations(text: str, seconds: float) -> None:
    found = stream_options({**PLAIN, "minOffsetsPerTrigger": "6", "maxTriggerDelay": text})
    assert found.trigger_delay_s == seconds
