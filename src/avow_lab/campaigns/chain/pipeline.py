"""The pipeline under test: the queue of orders as a stream into a Delta table, exactly once.

It is a driver of Spark in a separate process, and is killed with all its children. A query that fails, because one of
the processes that Spark runs Python in was killed, is started again from its checkpoint, as an operator would do.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from avow.spark.session import session
from avow.spark.tables import open_table
from avow_lab.campaigns.chain.shop import QUEUE
from avow_lab.campaigns.harness.spark_driver import SETTINGS

EVERY: Final = "300 milliseconds"
RETRY_S: Final = 0.5
COLUMNS: Final = (
    "get_json_object(cast(value as string), '$.order_id') as order_id",
    "cast(get_json_object(cast(value as string), '$.amount') as int) as amount",
    "partition as lane",
    "offset as version",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--servers", "--table", "--checkpoint", "--master"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--port", type=int, default=0, help="ignored; every program gets it")
    run(parser.parse_args())


def run(given: argparse.Namespace) -> None:
    from pyspark.errors import StreamingQueryException

    spark = session("orders", master=given.master, config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("avow").options(servers=given.servers, subscribe=QUEUE, startingOffsets="earliest")
    rows, table = source.load().selectExpr(*COLUMNS), open_table(given.table)
    while True:
        query = table.write_stream(rows, checkpoint=given.checkpoint, trigger={"processingTime": EVERY})
        try:
            query.awaitTermination()
        except StreamingQueryException as failure:
            sys.stderr.write(f"the query failed and is started again: {str(failure)[:2_000]}\n")
            sys.stderr.flush()
        time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
