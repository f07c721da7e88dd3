"""Spark killed with -9 at every step of a batch: see `campaign`."""
