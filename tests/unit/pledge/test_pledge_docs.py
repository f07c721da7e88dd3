"""The drawing in docs/pledges.md is made from the table of `avow.pledge.state`, and stays so."""

from __future__ import annotations

from pathlib import Path

from avow.pledge.state import diagram

PAGE = Path(__file__).parents[3] / "docs" / "pledges.md"


def test_the_page_shows_the_transition_table() -> None:
    assert f"```mermaid\n{diagram()}```" in PAGE.read_text(), "put avow.pledge.state.diagram() into docs/pledges.md"
