"""The runner of the pages detects their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.docs_blocks import blocks_of
from tests.docs.docs_page import check_output, commands_of

PAGE = """# A page

<!-- before
secret = 1
-->
```python
print(secret)
```

```text
1
```

<!-- not run: it needs two machines -->
```console
$ avow serve
```

```toml
# archive.toml
kind = "archive"
```

```
a drawing
```
"""


def test_blocks_are_found_with_their_annotations(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    python, console, toml = blocks_of(page)
    assert (python.before, python.prints, python.line) == ("secret = 1\n", "1\n", 6)
    assert console.not_run == "it needs two machines"
    assert (toml.file, toml.not_run) == ("archive.toml", "")


def test_commands_print_the_output_shown_below_them() -> None:
    text = "$ export A=1\n$ echo $A \\\n> more\n1 more\n...\n"
    assert commands_of(text) == [("export A=1", ""), ("echo $A \\\nmore", "1 more\n...\n")]


@pytest.mark.parametrize("out", ["stored 5 of 7\nend\n", "stored x of 7\nbetween\nlines\nend\n"])
def test_dots_match_any_text_in_a_line_and_any_lines(out: str) -> None:
    check_output("stored ... of 7\n...\nend\n", out, place="here")


@pytest.mark.parametrize("out", ["stored 5 of 8\nend\n", "stored 5\nof 7\nend\n", "stored 5 of 7\n", ""])
def test_different_output_is_reported(out: str) -> None:
    with pytest.raises(AssertionError, match="here shows"):
        check_output("stored ... of 7\n...\nend\n", out, place="here")
