"""`python -m avow.testing.channel_vectors`: are the files what the core does? With `--write` they are made so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from avow.testing.channel_vectors.form import text
from avow.testing.channel_vectors.scripts import written


def main(arguments: Sequence[str]) -> int:
    folder = Path(str(resources.files("avow.channel"))) / "vectors"
    wrong = 0
    for name, vectors in written().items():
        path, content = folder / name, text(vectors)
        if "--write" in arguments:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            wrong += 1
            sys.stdout.write(f"{name} is not what the core does now; write it with --write and read the difference\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
