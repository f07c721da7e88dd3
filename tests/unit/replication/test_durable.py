"""Only storage may say that something is durable."""

from __future__ import annotations

from pathlib import Path

import pytest

import avow
from avow.replication.durable import Synced


def test_a_receipt_cannot_be_constructed_directly() -> None:
    with pytest.raises(TypeError, match="only storage makes"):
        Synced(1)


def test_only_storage_makes_receipts() -> None:
    root = Path(avow.__file__).parent
    users = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        if "synced_receipt" in path.read_text() and path.name != "durable.py"
    }
    assert users == {"storage"}
