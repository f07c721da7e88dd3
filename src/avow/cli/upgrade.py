"""`avow upgrade`: which version of the protocol each peer can read and the cluster uses, and the end of an upgrade."""

from __future__ import annotations

from typing import Any

import typer

from avow.cli.cluster_api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.output import console, print_json, table

app = typer.Typer(help="Show how far the upgrade of a cluster is, and finish it.", no_args_is_help=True)


@app.command()
def status(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """Show which version of the protocol each peer can read, and which one the cluster uses."""
    found = Api(api, token=token, ca=ca).get(path_of("peers"))
    peers = [peer for peer in found["peers"] if peer["state"] != "gone"]
    level, reached = int(found.get("level") or 1), min(map(_newest, peers), default=0)
    if as_json:
        print_json({"level": level, "possible": max(level, reached), "peers": peers})
        return
    rows = [
        (str(peer["number"]), peer["state"], str(_newest(peer) or "-"), peer.get("api") or "-")
        for peer in sorted(peers, key=lambda peer: int(peer["number"]))
    ]
    console().print(table("", "peer", "state", "reads up to", "api", rows=rows))
    typer.echo(f"the cluster uses version {level} of the protocol{_hint(level, reached)}")


@app.command()
def finish(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """Let the cluster use what the new release added. Every peer must run it; afterwards none can be rolled back."""
    answer = Api(api, token=token, ca=ca).call("POST", path_of("level"), {})
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"the cluster uses version {answer['level']} of the protocol")


def _newest(peer: dict[str, Any]) -> int:
    """0: not known, because the peer is not connected or answers from a release that does not report it."""
    return int(peer.get("newest") or 0) if peer.get("connected") else 0


def _hint(level: int, reached: int) -> str:
    if reached > level:
        return f"; every peer reads {reached}: finish the upgrade with avow upgrade finish"
    return "" if reached else "; `-`: the peer is not connected to the one that answered"
