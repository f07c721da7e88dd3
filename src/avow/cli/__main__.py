"""`python -m avow.cli` does the same as `avow`, for environments where the script is not on the PATH."""

from __future__ import annotations

from avow.cli.main import main

if __name__ == "__main__":
    main()
