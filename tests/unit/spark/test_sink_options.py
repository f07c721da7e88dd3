"""Options of a write: valid ones, and that invalid ones are named."""

from __future__ import annotations

import pytest

from avow.errors import InvalidRequest
from avow.spark.sink.options import STAGE_DEADLINE_S, SinkOptions, read_options

SERVERS = {"servers": "http://127.0.0.1:7401"}


def test_the_addresses_option_is_sufficient() -> None:
    assert read_options(SERVERS, streaming=True) == SinkOptions("http://127.0.0.1:7401")


def test_options_are_case_insensitive() -> None:
    given = {**SERVERS, "TXNAPPID": "nightly", "txnversion": "07", "Topic": "orders", "stagedeadline": "90"}
    found = read_options(given, streaming=False)
    assert (found.job, found.topic, found.stage_deadline_s) == ("nightly:7", "orders", 90.0)


def test_options_that_spark_adds_are_accepted() -> None:
    found = read_options({**SERVERS, "checkpointlocation": "/c", "queryname": "q"}, streaming=True)
    assert found.stage_deadline_s == STAGE_DEADLINE_S


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "servers"),
        ({"servers": " "}, "servers"),
        ({**SERVERS, "txnAppld": "nightly"}, "txnAppld"),
        ({**SERVERS, "path": "/somewhere"}, "path"),
        ({**SERVERS, "txnAppId": "nightly"}, "both or none"),
        ({**SERVERS, "txnVersion": "1"}, "both or none"),
        ({**SERVERS, "txnAppId": "nightly", "txnVersion": "one"}, "txnVersion must be a number"),
        ({**SERVERS, "txnAppId": "nightly", "txnVersion": "-1"}, "txnVersion must be a number"),
        ({**SERVERS, "txnAppId": "n" * 151, "txnVersion": "1"}, "txnAppId"),
        ({**SERVERS, "txnAppId": "a\nb", "txnVersion": "1"}, "txnAppId"),
        ({**SERVERS, "topic": ""}, "topic"),
        ({**SERVERS, "stageDeadline": "soon"}, "stageDeadline"),
        ({**SERVERS, "stageDeadline": "0"}, "stageDeadline"),
        ({**SERVERS, "stageDeadline": "nan"}, "stageDeadline"),
        ({**SERVERS, "stageDeadline": "100000"}, "stageDeadline"),
    ],
)
def test_errors_are_named_and_nothing_is_written(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        read_options(given, streaming=False)
    assert "othing was written" in str(caught.value)


def test_a_stream_has_its_names_from_its_checkpoint() -> None:
    with pytest.raises(InvalidRequest, match="txnAppId and txnVersion are for batch writes"):
        read_options({**SERVERS, "txnAppId": "nightly", "txnVersion": "1"}, streaming=True)
