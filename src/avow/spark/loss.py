"""Versions that were removed before they were read, and what the option failOnDataLoss says about it.

A queue's retention, a trim, or the end of a pub-sub lane may take versions away that a read still asks for. With
failOnDataLoss (the default) the read fails and names them; without, they are skipped and named in the log.
"""

from __future__ import annotations

import logging
from typing import Final

from avow.errors import Trimmed

LOG: Final = logging.getLogger("avow.spark")


def report_loss(what: object, *, fail: bool) -> None:
    """Raises Trimmed, or leaves a warning."""
    if fail:
        raise Trimmed(
            f"{what} cannot be read any more: removed before this read came to it. The read was given up; set the "
            "option failOnDataLoss to false to skip what is lost, or archive to a table that has it"
        )
    LOG.warning("%s cannot be read any more and is skipped (failOnDataLoss is false)", what)
