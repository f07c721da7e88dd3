"""`avow doctor`: is this machine fit for a peer, and is the cluster well? Each line says what to do.

The checks are by what they look at: `doctor_install` the interpreter and the extras, `doctor_spark` what Spark needs,
`doctor_machine` disk, clock and limits, `doctor_network` ports, access and the cluster, `doctor_reach` why a cluster
that was named does not answer, `doctor_service` a service's database and checkback.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from avow.cli.api import Api
from avow.cli.doctor_finding import Finding
from avow.cli.doctor_install import check_environment, check_libraries, check_python
from avow.cli.doctor_machine import check_clock, check_folder, check_limits
from avow.cli.doctor_network import check_access, check_cluster, check_ports
from avow.cli.doctor_service import check_checkback, check_database
from avow.cli.doctor_spark import check_spark
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.show import OK, REFUSED, console, print_json
from avow.errors import AvowError
from avow.peer.settings import Settings, load

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    data: Annotated[str | None, typer.Option(help="Folder of the peer.", show_default="avow-data")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="As for serve.", show_default=False)] = None,
    peer_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="As for serve.", show_default=False)
    ] = None,
    tokens: Annotated[str | None, typer.Option(metavar="FILE", help="As for serve.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings of the peer.", show_default=False)
    ] = None,
    database: Annotated[
        str, typer.Option(metavar="URL", help="Of a service: is the barrier's table there?", show_default=False)
    ] = "",
    checkback: Annotated[
        str, typer.Option(metavar="URL", help="Of a service: does its checkback answer?", show_default=False)
    ] = "",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Check what is installed, disk, ports, clock and access for a peer, and the cluster if one answers.

    Exit code 1 when something fails.
    """
    flags = {"data": data, "listen": listen, "peer_listen": peer_listen, "tokens": tokens}
    cluster = Api(api, token=token, ca=ca, timeout_s=5.0)
    findings = examine(flags, config=config, cluster=cluster, asked=api != DEFAULT_API)
    findings += [check_database(database)] if database else []
    findings += [check_checkback(checkback, ca=ca)] if checkback else []
    if as_json:
        print_json({"healthy": healthy(findings), "findings": msgspec.to_builtins(findings)})
    else:
        _print(findings)
    raise typer.Exit(OK if healthy(findings) else REFUSED)


def examine(flags: dict[str, str | None], *, config: Path | None, cluster: Api, asked: bool) -> list[Finding]:
    findings = [check_python(), check_environment(), *check_libraries(), *check_spark()]
    try:
        settings = load(flags, environment=os.environ, config=config)
    except AvowError as error:
        findings.append(Finding("settings", "fail", str(error), "avow serve would not start like this"))
        settings = Settings()
    findings += check_folder(Path(settings.data))
    findings += [check_limits(connections=settings.connections_max), check_clock()]
    findings += [*check_ports(settings), *check_access(settings)]
    return findings + check_cluster(cluster, asked=asked)


def healthy(findings: list[Finding]) -> bool:
    return all(finding.verdict != "fail" for finding in findings)


def _print(findings: list[Finding]) -> None:
    screen = console()
    for finding in findings:
        colour = COLOURS[finding.verdict]
        screen.print(f"[{colour}]{finding.verdict:4}[/]  {finding.check:10}  ", end="")
        screen.print(finding.found, markup=False)
        if finding.advice:
            screen.print(f"                  → {finding.advice}", markup=False)
    failed = sum(finding.verdict == "fail" for finding in findings)
    warned = sum(finding.verdict == "warn" for finding in findings)
    screen.print(f"{len(findings)} checks: {failed} failed, {warned} to look at")
