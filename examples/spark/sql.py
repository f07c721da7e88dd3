"""Queues in Spark SQL: a view that is read, and one that is inserted into.

python sql.py http://127.0.0.1:7401 orders copies
"""

from __future__ import annotations

import sys

from avow.spark import session


def main(servers: str, source: str, target: str) -> None:
    spark = session("sql")
    spark.sql(f"CREATE TEMPORARY VIEW lines USING avow OPTIONS (servers '{servers}', subscribe '{source}')")
    spark.sql(f"""
        CREATE TEMPORARY VIEW copies (key BINARY, value BINARY)
        USING avow OPTIONS (servers '{servers}', topic '{target}')
    """)
    spark.sql("INSERT INTO copies SELECT key, value FROM lines WHERE partition = 0")
    spark.sql("SELECT partition AS lane, count(*) AS messages FROM lines GROUP BY partition ORDER BY lane").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
