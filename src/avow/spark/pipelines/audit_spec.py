"""The settings of an audit, from a TOML file of `kind = "audit"`. Pure.

    kind = "audit"
    servers = "http://127.0.0.1:7401"                 of pledges and queue, unless they name others
    show = 20                                         number of ids to show per finding
    patience_s = 30                                   repeat the audit for this long while it has findings
    report = "avow.pipelines"                         the queue for status reports; empty: no reports

    [business]
    database = "postgresql://shop@db/shop"            or sqlite:PATH, mysql://...
    query = "select id from orders"                   the first column is the id

    [barrier]
    database = "postgresql://shop@db/shop"            table = "..." if it is not the default one

    [pledges]

    [queue]
    name = "orders"
    id = "$.order_id"                                 in the value's JSON; or key; or an expression of Spark SQL
    archive = "delta:/data/archive"                   options = { endingTimestamp = "..." }: any option of the source

    [table]
    url = "delta:/data/orders"
    id = "order_id"

At least two of the five sections are needed. In `barrier` and `pledges`, `id` is an expression over `gid`, for gids
that are not the id itself: "substring(gid, 7)".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from avow.errors import InvalidRequest
from avow.limits import PIPELINES_QUEUE
from avow.spark.pipelines.audit_rules import STAGES, Stage

IDS_SHOWN: Final = 20


class BusinessInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database: str
    query: str

    def describe(self) -> str:
        return self.query


class BarrierInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database: str
    table: str = ""
    id: str = "gid"

    def describe(self) -> str:
        return f"committed rows of {self.table or 'the barrier'}"


class PledgesInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    servers: str = ""
    token: str | None = None
    ca: str | None = None
    id: str = "gid"

    def describe(self) -> str:
        return "known to the coordinator"


class QueueInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    id: str = "key"
    servers: str = ""
    token: str | None = None
    ca: str | None = None
    archive: str | None = None
    options: dict[str, str] = {}

    def describe(self) -> str:
        return f"{self.name}{' and its archive' if self.archive else ''}, by {self.id}"


class TableInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    id: str

    def describe(self) -> str:
        return f"{self.url.partition(':')[0]}, by {self.id}"


class AuditSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["audit"] = "audit"
    name: str = "audit"
    servers: str = ""
    token: str | None = None
    ca: str | None = None
    show: int = IDS_SHOWN
    patience_s: float = 0.0
    report: str = PIPELINES_QUEUE
    business: BusinessInput | None = None
    barrier: BarrierInput | None = None
    pledges: PledgesInput | None = None
    queue: QueueInput | None = None
    table: TableInput | None = None

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, folder: str = "") -> AuditSpec:
        """Raises InvalidRequest, which names the place. Paths of tables and databases are relative to `folder`."""
        try:
            spec = msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as mistake:
            raise InvalidRequest(f"this is not a valid audit: {mistake}; nothing was read") from None
        spec.check()
        return spec.rooted(folder) if folder else spec

    def check(self) -> None:
        if len(self.stages) < 2:
            raise InvalidRequest(f"an audit compares at least two of {', '.join(STAGES)}; nothing was read")
        for part in (self.pledges, self.queue):
            if part is not None and not (part.servers or self.servers):
                raise InvalidRequest("`servers` is missing, which pledges and queue need; nothing was read")

    def rooted(self, folder: str) -> AuditSpec:
        business, barrier, queue, table = self.business, self.barrier, self.queue, self.table
        return replace(
            self,
            business=business and replace(business, database=_rooted(business.database, folder)),
            barrier=barrier and replace(barrier, database=_rooted(barrier.database, folder)),
            queue=queue and replace(queue, archive=queue.archive and _rooted(queue.archive, folder)),
            table=table and replace(table, url=_rooted(table.url, folder)),
        )

    @property
    def stages(self) -> dict[Stage, str]:
        """The stages to compare, each with a short description."""
        parts = {stage: getattr(self, stage) for stage in STAGES}
        return {stage: part.describe() for stage, part in parts.items() if part is not None}

    def access(self, part: PledgesInput | QueueInput) -> dict[str, str]:
        """Addresses, token and CA as options of the source."""
        given = {
            "servers": part.servers or self.servers,
            "token": part.token or self.token,
            "ca": part.ca or self.ca,
        }
        return {name: value for name, value in given.items() if value}


def _rooted(url: str, folder: str) -> str:
    kind, _, path = url.partition(":")
    if kind not in ("delta", "parquet", "sqlite") or path.startswith(("file:", "/")):
        return url
    return f"{kind}:{os.path.join(folder, os.path.expanduser(path))}"


def id_expression(text: str) -> str:
    """An expression of Spark SQL. `$.path` is read from the value's JSON."""
    if text.startswith("$"):
        quoted = text.replace("\\", "\\\\").replace("'", "\\'")
        return f"get_json_object(cast(value as string), '{quoted}')"
    return f"cast({text} as string)"
