"""A pipeline's input: its source as options of `format("avow")`, and the rows.

Spark's checkpoint does not store these options, so a pipeline may use other servers in the next run. `check_cluster`
contacts the peers before Spark is started, so that a misspelled queue is reported at once and not ten seconds later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from avow.client.blocking import connect_blocking
from avow.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from avow.spark.pipelines.spec import Cluster, Source

CHECK_TIMEOUT_S: Final = 10.0


def cluster_options(cluster: Cluster) -> dict[str, str]:
    named = {"servers": cluster.servers, "token": cluster.token, "ca": cluster.ca}
    return {name: value for name, value in named.items() if value}


def source_options(source: Source, cluster: Cluster) -> dict[str, str]:
    """All options except the start and the end of the read. Pure."""
    found = cluster_options(cluster)
    if source.pattern:
        found["subscribePattern"] = source.pattern
    else:
        found["subscribe"] = ",".join(source.queues)
    found["includeHeaders"] = str(source.headers).lower()
    found["failOnDataLoss"] = str(source.lost == "fail").lower()
    if source.archive:
        found["archive"] = source.archive
    return found


def stream_options(source: Source, cluster: Cluster) -> dict[str, str]:
    """Pure."""
    found = source_options(source, cluster) | start_options(source)
    if source.batch_rows is not None:
        found["maxOffsetsPerTrigger"] = str(source.batch_rows)
    if source.subscriber:
        found["subscriber"] = source.subscriber
    return found


def start_options(source: Source) -> dict[str, str]:
    start = source.start
    if isinstance(start, dict):
        return {"startingOffsets": json.dumps({source.queues[0]: {str(lane): at for lane, at in start.items()}})}
    if isinstance(start, str) and start.startswith("@"):
        return {"startingTimestamp": start[1:], "startingOffsetsByTimestampStrategy": "latest"}
    return {"startingOffsets": str(start)}


def stream_rows(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("avow").options(**options).load()


def check_cluster(cluster: Cluster, queues: Iterable[str], *, written: Iterable[str] = ()) -> None:
    """Raises Offline, UnknownQueue, NotAuthenticated, or InvalidRequest for a queue that rows cannot be written to."""
    written = [queue for queue in written if queue]
    with connect_blocking(
        cluster.servers, token=cluster.token or None, ca=cluster.ca or None, timeout_s=CHECK_TIMEOUT_S
    ) as client:
        client.queues()
        for queue in dict.fromkeys((*queues, *written)):
            info = client.queue(queue).info()
            if info.pubsub and queue in written:
                raise InvalidRequest(
                    f"queue {queue!r} is a pub-sub queue, but a pipeline can only write to two-phase queues; nothing "
                    "was started"
                )
