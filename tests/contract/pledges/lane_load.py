"""`pledge_load` on the store in the cluster itself, as a process that is killed:

python lane_load.py <url of the place> <name>
"""

from __future__ import annotations

import asyncio
import sys

from tests.contract.pledges import pledge_load
from tests.contract.pledges.lane_places import LanePlace

from avow.pledge.store import PledgeStore


def _store_of(url: str) -> PledgeStore:
    return LanePlace(url).open()


if __name__ == "__main__":
    pledge_load.store_of = _store_of  # type: ignore[attr-defined]
    asyncio.run(pledge_load._main(*sys.argv[1:]))
