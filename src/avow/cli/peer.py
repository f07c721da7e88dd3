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
from avow.cli.output import console, numbers, plural, print_json, table
from avow.errors import InvalidRequest, Offline, PeerRemoved, Unknown, UnknownPeer
from avow.replication.quorum import quorum

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
    command = start_command(known, member=_member(known, cluster), data=data, host=host)
    if as_json:
        print_json({"command": command})
        return
    typer.echo(" ".join(command))
    hints = Console(stderr=True, highlight=False, soft_wrap=True)
    hints.print("run this on the new peer's machine; then: avow status --watch", style="dim")
    hints.print(_growth(known), style="dim")
    if host not in ("127.0.0.1", "::1", "localhost"):
        hints.print("an address beyond loopback also needs --tokens and --tls-cert, --tls-key, --tls-ca", style="dim")


def _growth(known: list[dict[str, Any]]) -> str:
    """What changes once the new peer votes."""
    voters = sum(bool(peer.get("voter")) for peer in known)
    return f"once it votes, {_needed(voters + 1)} instead of {quorum(voters)} of {voters}"


def _needed(voters: int) -> str:
    """Of a cluster of so many voters."""
    needed = quorum(voters)
    return f"a write needs {needed} of {voters} peers (the cluster survives the loss of {voters - needed})"


def _member(known: list[dict[str, Any]], cluster: Api) -> str:
    """The peer to join through: the one that answered, unless it is about to leave."""
    leaving = {_address(peer) for peer in known if peer["state"] in ("leaving", "gone")}
    staying = [_address(peer) for peer in known if peer["state"] == "ready" and peer.get("connected")]
    return cluster.address if cluster.address not in leaving else next(iter(staying), cluster.address)


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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the peer has left.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Maximum time to wait, in seconds.")] = 120.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Remove a peer from the cluster permanently. It leaves every quorum, serves nothing any more, and its process ends
    by itself. Its number is never used again."""
    given = Api(api, token=token, ca=ca)
    known = given.get(path_of("peers"))["peers"]
    state = _state_in(known, number)
    if state == "gone":
        _print_removed(number, state, as_json=as_json)
        return
    cluster = given.asking(_others_first(known, given, number))
    if state != "leaving":
        if not yes:
            _confirm(number, known, cluster)
        state = _begin_removal(cluster, number)
    if wait and state != "gone":
        state = _wait_gone(cluster, number, timeout_s=timeout_s, quiet=as_json)
    _print_removed(number, state, as_json=as_json)


def _print_removed(number: int, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"number": number, "state": state})
    else:
        typer.echo(_removed(number, state))


def _removed(number: int, state: str) -> str:
    if state == "gone":
        return f"peer {number} is gone: its process ends by itself, and you may delete its folder"
    return f"peer {number} is {state}; avow peer list shows when it is gone"


def _others_first(known: list[dict[str, Any]], given: Api, number: int) -> list[str]:
    """Addresses to ask about the removal of a peer: it may stop serving before it has learned that it is gone."""
    own = {_address(peer) for peer in known if int(peer["number"]) == number}
    others = [_address(peer) for peer in known if peer["state"] in ("ready", "joining") and _address(peer) not in own]
    asked = dict.fromkeys([given.address, *others, *given.addresses])
    return [each for each in asked if each and each not in own] + [each for each in asked if each in own]


def _address(peer: dict[str, Any]) -> str:
    return str(peer.get("api") or "").rstrip("/")


def _confirm(number: int, known: list[dict[str, Any]], cluster: Api) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"the removal of peer {number} is permanent; nothing was done. Confirm with --yes")
    for line in consequences(number, known, cluster.get(path_of("cluster"))["lanes"]):
        typer.echo(line, err=True)
    typer.confirm(f"permanently remove peer {number}?", abort=True, err=True)


def consequences(number: int, known: list[dict[str, Any]], lanes: list[dict[str, Any]]) -> list[str]:
    """What the removal of this peer changes, in sentences."""
    voters = {int(peer["number"]): peer for peer in known if peer.get("voter")}
    after = {peer for peer in voters if peer != number}
    lines = []
    if number in voters and after:
        lines.append(
            f"voters: {numbers(sorted(voters))} -> {numbers(sorted(after))}; {_needed(len(after))} instead of "
            f"{quorum(len(voters))} of {len(voters)}"
        )
    missing = sorted(peer for peer in after if not voters[peer].get("connected"))
    if missing:
        lines.append(
            f"not connected now: {numbers(missing)}; the removal ends only when a quorum of the others is connected"
        )
    voted = [lane for lane in lanes if number in (lane.get("voters") or ())]
    led = [lane for lane in voted if lane.get("coordinator") == number]
    lines.append(
        f"peer {number} votes in {plural(len(voted), 'lane')} and coordinates {len(led)} of them, which other peers "
        "take over"
    )
    return lines


def _begin_removal(cluster: Api, number: int) -> str:
    """The peer's state after the request. If its answer was lost, the list of peers says what happened."""
    try:
        return str(cluster.call("DELETE", path_of("peers", number))["state"])
    except InvalidRequest as error:
        raise InvalidRequest(
            f"peer {number} was not removed: at least one peer must remain in a cluster ({error})"
        ) from error
    except Unknown:
        state = _state(cluster, number)
        if state in ("leaving", "gone"):
            return state
        raise


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
    raise Unknown(
        f"peer {number} is still {state} after {timeout_s:g} s. The removal was accepted and continues by itself: it "
        "ends when a quorum of the other peers is connected. avow peer list shows when the peer is gone"
    )


def _state(cluster: Api, number: int) -> str:
    """Empty if no peer answered."""
    try:
        peers = cluster.get(path_of("peers"))["peers"]
    except (Offline, PeerRemoved):
        return ""
    return _state_in(peers, number)


def _state_in(peers: list[dict[str, Any]], number: int) -> str:
    for peer in peers:
        if int(peer["number"]) == number:
            return str(peer["state"])
    raise UnknownPeer(f"the cluster has no peer {number}; nothing was done. avow peer list shows its peers")


def _port(address: str) -> int:
    return urlsplit(address if "://" in address else f"//{address}").port or 0
