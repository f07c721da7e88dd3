"""The shop runs as its first lines say, in a short form."""

from __future__ import annotations

import pytest
from tests.integration.test_examples import run


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_order_is_one_message_though_shop_and_peers_are_killed(database: str) -> None:
    flags = ("--database", database, "--orders", "60", "--kills", "3", "--seed", "3")
    output = run("shop/run.py", *flags, timeout_s=500)
    assert "60 orders" in output
    assert "every order is one message" in output
