"""The checks of every simulated run: ledgers of lanes, queues and the metadata lane, and convergence."""
