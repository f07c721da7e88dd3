"""Generates reference pages from the code that they describe.

`python -m tools.reference` writes them to docs/reference; with `--check` it writes nothing and lists the pages that are
out of date. A test runs the check.
"""
