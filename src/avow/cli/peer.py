"""`avow peer`: list, add, remove. `add` prints the command that starts the new peer's process on its machine."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console

from avow.cli.cluster_api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.output import console, print_json, table
from avow.errors import AvowError, Offline, UnknownPeer

app = typer.Typer(help="List, add and remove the peers of a cluster.", no_args_is_help=True)

POLL_S: Final = 0.2


@app.command("list")
def list_peers(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """List the peers, as reported by the first one that answers."""
    found = Api(api, token=token, ca=ca).get(path_of("peers"))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            str(peer["number"]),
            peer["state"],
            "yes" if peer.get("voter") else "no",
            "yes" if peer.get("connected") else "no",
            peer.get("api") or "-",
            peer.get("link") or "-",
            peer.get("identity") or "-",
        )
        for peer in sorted(found["peers"], key=lambda peer: int(peer["number"]))
    ]
    console().print(table("", "peer", "state", "votes", "connected", "api", "link", "identity", rows=rows))


@app.command()
def add(
    data: Annotated[
        str, typer.Option(help="Data folder of the new peer, empty or missing.", show_default="avow-peer-N")
    ] = "",
    host: Annotated[str, typer.Option(help="Address the new peer listens on.")] = "127.0.0.1",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Print the command that starts a new peer. The peer joins the cluster and votes once it stores all messages."""
    cluster = Api(api, token=token, ca=ca)
    known = cluster.get(path_of("peers"))["peers"]
    command = start_command(known, member=cluster.address, data=data, host=host)
    if as_json:
        print_json({"command": command})
        return
    typer.echo(" ".join(command))
    hints = Console(stderr=True, highlight=False, soft_wrap=True)
    hints.print("run this on the new peer's machine; then: avow status --watch", style="dim")
    if host not in ("127.0.0.1", "::1", "localhost"):
        hints.print("an address beyond loopback also needs --tokens and --tls-cert, --tls-key, --tls-ca", style="dim")


def start_command(known: list[dict[str, Any]], *, member: str, data: str, host: str) -> list[str]:
    """The new peer gets the next number, and the next ports after the highest ones in use."""
    number = max((int(peer["number"]) for peer in known), default=0) + 1
    api_port = max((_port(str(peer.get("api") or "")) for peer in known), default=0) + 1
    link_port = max((_port(str(peer.get("link") or "")) for peer in known), default=0) + 1
    listen = ["--listen", f"{host}:{api_port}", "--peer-listen", f"{host}:{link_port}"]
    return ["avow", "serve", "--data", data or f"avow-peer-{number}", *listen, "--join", member]


@app.command()
def remove(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, show_default=False)],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the peer has left.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Maximum time to wait, in seconds.")] = 120.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Remove a peer from the cluster permanently. It leaves every quorum; its number is never used again."""
    cluster = Api(api, token=token, ca=ca)
    answer = cluster.call("DELETE", path_of("peers", number))
    if wait:
        answer = {"number": number, "state": _wait_gone(cluster, number, timeout_s=timeout_s, quiet=as_json)}
    if as_json:
        print_json(answer)
    else:
        typer.echo(_removed(number, str(answer["state"])))


def _removed(number: int, state: str) -> str:
    if state == "gone":
        return f"peer {number} is gone: you may end its process and delete its folder"
    return f"peer {number} is {state}; avow peer list shows when it is gone"


def _wait_gone(cluster: Api, number: int, *, timeout_s: float, quiet: bool) -> str:
    deadline = time.monotonic() + timeout_s
    screen = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    state = "leaving"
    with screen.status(f"peer {number} is leaving the lanes it votes in") as shown:
        while time.monotonic() < deadline:
            state = _state(cluster, number) or state
            if state == "gone":
                return state
            shown.update(f"peer {number} is {state} ({deadline - time.monotonic():.0f} s left)")
            time.sleep(POLL_S)
    raise Offline(
        f"peer {number} is still {state} after {timeout_s:g} s. The removal was accepted and continues; avow peer list "
        "shows when the peer is gone"
    )


def _state(cluster: Api, number: int) -> str:
    """Empty if no peer answered: the peer that was asked may be the one that leaves."""
    try:
        peers = cluster.get(path_of("peers"))["peers"]
    except AvowError:
        return ""
    for peer in peers:
        if int(peer["number"]) == number:
            return str(peer["state"])
    raise UnknownPeer(f"the cluster has no peer {number}; avow peer list shows its peers")


def _port(address: str) -> int:
    return urlsplit(address if "://" in address else f"//{address}").port or 0
