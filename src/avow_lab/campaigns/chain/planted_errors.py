"""Errors made on purpose, which the audit must find.

lost        one row is deleted from the table
doubled     one row is appended to the table a second time
orphan      a message without an order is written to the queue, and the pipeline writes it to the table
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest
from avow.spark.pipelines.audit_report import Report
from avow.spark.pipelines.audit_rules import Kind, Stage
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.chain.chain import Chain
from avow_lab.campaigns.chain.shop import QUEUE

PlantKind: TypeAlias = Literal["lost", "doubled", "orphan"]
PLANTS: Final[tuple[PlantKind, ...]] = PlantKind.__args__  # type: ignore[attr-defined]
WRITTEN_S: Final = 300.0
ORPHAN: Final = "nobody-ordered-this"


class Planted(Struct, frozen=True):
    """The finding that the audit must have: its kind, stage and id."""

    kind: Kind
    stage: Stage
    id: str


def plant(chain: Chain, kind: PlantKind) -> Planted:
    if kind == "orphan":
        return _orphan(chain)
    ids = sorted(_ids(chain))
    if len(ids) < len(PLANTS):
        raise InvalidRequest(
            f"an error is planted among at least {len(PLANTS)} rows, and there are {len(ids)}; nothing was changed"
        )
    if kind == "lost":
        _table(chain).delete(f"order_id = '{ids[0]}'")
        return Planted("lost", "table", ids[0])
    _append_again(chain, ids[-1])
    return Planted("doubled", "table", ids[-1])


def _append_again(chain: Chain, order: str) -> None:
    import deltalake

    rows = _table(chain).to_pyarrow_table()
    place = rows.column("order_id").to_pylist().index(order)
    deltalake.write_deltalake(chain.table.address.place, rows.slice(place, 1), mode="append")


def _orphan(chain: Chain) -> Planted:
    value = msgspec.json.encode({"order_id": ORPHAN, "amount": 0})
    chain.client.queue(QUEUE).enqueue(value, key=ORPHAN.encode())
    late = "the pipeline did not write the message to the table"
    wait_until(lambda: ORPHAN in _ids(chain), timeout_s=WRITTEN_S, what=late)
    return Planted("orphaned", "queue", ORPHAN)


def names_exactly(report: Report, planted: list[Planted]) -> bool:
    found = sorted((one.kind, one.stage, text) for one in report.findings for text in one.ids)
    wanted = sorted((one.kind, one.stage, one.id) for one in planted)
    return found == wanted and sum(one.count for one in report.findings) == len(planted)


def _ids(chain: Chain) -> list[str]:
    return list(_table(chain).to_pyarrow_table(columns=["order_id"]).column("order_id").to_pylist())


def _table(chain: Chain) -> Any:
    import deltalake

    return deltalake.DeltaTable(chain.table.address.place)
