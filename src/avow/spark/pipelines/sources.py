"""What a pipeline reads, as the options of `format("avow")`, and its rows.

Everything is passed by options that Spark's checkpoint does not keep, so a pipeline may be given other servers from one
run to the next. `check_cluster` asks the peers before Spark is started: ten seconds of a JVM's life are a long wait for
"there is no queue 'ordres'".
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

FIRST_ANSWER_S: Final = 10.0


def cluster_options(cluster: Cluster) -> dict[str, str]:
    named = {"servers": cluster.servers, "token": cluster.token, "ca": cluster.ca}
    return {name: value for name, value in named.items() if value}


def source_options(source: Source, cluster: Cluster) -> dict[str, str]:
    """All but where a read starts and ends. Pure."""
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
        cluster.servers, token=cluster.token or None, ca=cluster.ca or None, timeout_s=FIRST_ANSWER_S
    ) as client:
        client.queues()
        for queue in dict.fromkeys((*queues, *written)):
            info = client.queue(queue).info()
            if info.pubsub and queue in written:
                raise InvalidRequest(
                    f"queue {queue!r} is a pub-sub queue, and a pipeline writes to two-phase ones; nothing was started"
                )
