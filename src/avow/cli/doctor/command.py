"""`avow doctor`: check whether this machine can run a peer and whether the cluster is healthy.

Each finding says what is wrong and what to do. The checks are grouped by area: `install` (interpreter, extras, Spark
and Java), `host` (disk, clock, limits), `network` (ports, access, the cluster and why it does not answer), `service`
(a service's database and checkback).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from avow.cli.cluster_api import Api
from avow.cli.doctor.finding import Finding
from avow.cli.doctor.host import check_clock, check_folder, check_limits
from avow.cli.doctor.install import check_environment, check_libraries, check_python, check_spark
from avow.cli.doctor.network import check_access, check_cluster, check_ports
from avow.cli.doctor.service import check_checkback, check_database
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.output import OK, REFUSED, console, plural, print_json
from avow.errors import AvowError
from avow.server.settings import Settings, load

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    data: Annotated[str | None, typer.Option(help="Data folder of the peer.", show_default="avow-data")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Same as avow serve --listen.", show_default=False)
    ] = None,
    peer_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Same as avow serve --peer-listen.", show_default=False)
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="FILE", help="Same as avow serve --tokens.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with the peer's settings.", show_default=False)
    ] = None,
    database: Annotated[
        str,
        typer.Option(metavar="URL", help="Check the barrier's table in a service's database.", show_default=False),
    ] = "",
    checkback: Annotated[
        str,
        typer.Option(metavar="URL", help="Check that a service answers checkbacks here.", show_default=False),
    ] = "",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Check this machine and the cluster for problems.

    Checks the installation, disk, ports, clock and access settings for a peer, and the cluster if one answers. The exit
    code is 1 if a check fails.
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
        findings.append(Finding("settings", "fail", str(error), "avow serve refuses to start with this; correct it"))
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
    screen.print(f"{len(findings)} checks: {failed} failed, {plural(warned, 'warning')}")
