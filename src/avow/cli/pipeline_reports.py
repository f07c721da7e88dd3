"""`avow pipeline list --api`: the pipelines that report to a cluster, wherever they run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from avow.cli.session import connected
from avow.cli.show import console, duration_text, number, plain, print_json, table

if TYPE_CHECKING:
    from avow.spark.pipelines.reporting import Report


def list_reported(api: str, *, token: str, ca: str, timeout_s: float, as_json: bool) -> None:
    from avow.spark.pipelines.reports import read_reports

    with connected(api, token=token, ca=ca, timeout_s=timeout_s) as client:
        found = read_reports(client)
    if as_json:
        print_json(found)
        return
    columns = ("pipeline", "kind", "state", "where", ">rows", ">rows/s", ">lag", "heard", "")
    empty = "no pipeline has reported to this cluster within a day; each does unless it is told --no-report"
    console().print(table("", *columns, rows=[_row(one) for one in found], empty=empty))


def _row(one: Report) -> tuple[str, ...]:
    heard = duration_text(max(0, round(time.time() - one.at_s))) + " ago"
    where = f"{one.host}, pid {one.pid}"
    figures = (number(one.rows), number(round(one.rows_per_s)), number(one.lag))
    return (plain(one.name), plain(one.kind), plain(one.state), plain(where), *figures, heard, plain(one.error))
