"""The same work on Avow and on systems that people use for it today. `python -m benchmarks against` runs it."""
