"""`python -m avow.cli`: the same as `avow`, where the script is not on the path."""

from __future__ import annotations

from avow.cli.main import main

if __name__ == "__main__":
    main()
