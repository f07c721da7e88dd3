"""The walk in docs/architecture.md is the present path of a message."""

from __future__ import annotations

import pytest
from benchmarks import builds, walk
from benchmarks.builds import ROOT, BuildError

PAGE = (ROOT / walk.PAGE).read_text()
BEFORE = "dcd3e62"


def test_the_table_on_the_page_is_current() -> None:
    found = walk.follow_tree(root=ROOT)
    assert walk.wordless(found) == [], "say in benchmarks/walk_words.py what these do"
    assert walk.page_with(PAGE, walk.markdown(found)) == PAGE, "run `python -m benchmarks walk --write`"


def test_the_page_quotes_the_walk_of_the_earlier_tree() -> None:
    try:
        builds.describe_commit(BEFORE)
    except BuildError as error:
        pytest.skip(str(error))
    before = walk.follow_commit(BEFORE, root=ROOT)
    assert f"{BEFORE}, the tree before roles became objects, has {before.sentence()}" in PAGE
