"""`avow prove --spark`: Spark's driver and executors are killed with -9 at every step of a batch."""
