"""Spark Connect: the client is a plain Python program, Spark and Avow's source and sink run at the server.

    python connect.py http://127.0.0.1:7401 orders copies                       # starts a server in this process
    python connect.py http://127.0.0.1:7401 orders copies sc://spark-host:15002

The server's machines need Avow installed and must reach the peers; the client needs neither. Needs `pyspark[connect]`.
"""

from __future__ import annotations

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from avow.spark.java import find_java


def main(servers: str, source: str, target: str, remote: str = "local[2]") -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if remote.startswith("local"):
        os.environ.setdefault("JAVA_HOME", str(find_java().home))
    spark = SparkSession.builder.remote(remote).getOrCreate()
    rows = spark.read.format("avow").option("servers", servers).option("subscribe", source).load()
    print("rows:", rows.count())

    stream = spark.readStream.format("avow").option("servers", servers).option("subscribe", source)
    copies = stream.option("startingOffsets", "earliest").load().select("key", "value")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:  # a real one is kept, at the server
        sink = copies.writeStream.format("avow").option("servers", servers).option("topic", target)
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
