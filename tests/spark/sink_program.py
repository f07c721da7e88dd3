"""A driver to be killed: files of lines to a queue, one file a batch, until all are written.

python sink_program.py SERVERS FOLDER CHECKPOINT QUEUE
"""

from __future__ import annotations

import sys

from avow.spark.session import session


def main(servers: str, folder: str, checkpoint: str, queue: str) -> None:
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # a JVM that is killed soon had better start soon
    settings = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": quick}
    spark = session("killed", master="local[2]", config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(folder).repartition(2)
    query = (
        lines.selectExpr("value", "value AS key")
        .writeStream.format("avow")
        .option("servers", servers)
        .option("topic", queue)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
