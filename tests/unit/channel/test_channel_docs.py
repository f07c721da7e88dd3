"""The diagrams in docs/channel.md match the tables of `avow.channel.protocol.states`."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.channel.protocol.states import MACHINES, diagram

PAGE = Path(__file__).parents[3] / "docs" / "channel.md"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_page_shows_each_machine_as_its_table_has_it(machine: str) -> None:
    assert f"```mermaid\n{diagram(MACHINES[machine])}```" in PAGE.read_text(), (
        f"docs/channel.md does not show the table of the {machine}: put diagram(MACHINES[{machine!r}]) there"
    )
