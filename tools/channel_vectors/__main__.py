"""`python -m tools.channel_vectors`: check the files against the core; with `--write`, write them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.channel_vectors.form import FOLDER, text
from tools.channel_vectors.scripts import written


def main(arguments: Sequence[str]) -> int:
    wrong = 0
    for name, vectors in written().items():
        path, content = FOLDER / name, text(vectors)
        if "--write" in arguments:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            wrong += 1
            sys.stdout.write(f"{name} differs from the core's behaviour; run with --write and review the difference\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
