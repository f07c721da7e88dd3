"""The README's `make` targets agree with the Makefile; the rest of it is run in test_spark_pages.py."""

from __future__ import annotations

import re

from tests.docs.docs_blocks import ROOT, blocks_of
from tests.docs.docs_page import commands_of

README = ROOT / "README.md"


def test_both_documented_commands_exist() -> None:
    first = next(block for block in blocks_of(README) if block.language == "console")
    named = [command.split()[:2] for command, _ in commands_of(first.text)]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert named == [["make", "run"], ["make", "test"]]
    assert re.search(r"^run:.*\n\t@\$\(BIN\)/avow demo \$\(ARGS\)$", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 260
