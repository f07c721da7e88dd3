"""Tables to which a stream or a batch is appended exactly once: Delta, Parquet, PostgreSQL.

table = open_table("delta:/data/orders")
query = table.write_stream(df, checkpoint="/data/checkpoint")
table.rows(spark).groupBy("topic").count().show()
"""

from avow.spark.tables.tables import Table, open_table

__all__ = ["Table", "open_table"]
