"""Pages of the documentation that are made from the code they describe.

`python -m avow.cli.reference` writes them into docs/reference; with `--check` it writes nothing and says which of them
are not what the code says. A page that is made cannot be wrong for long: a test runs the check.
"""
