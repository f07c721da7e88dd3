"""`pytest tests/scenarios --rewrite` writes what the transcripts show now back into their files. Read the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", default=False, help="write what transcripts show into them")
