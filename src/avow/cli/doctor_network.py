"""What `avow doctor` looks at beyond this process: ports, who is let in, and the cluster, if one answers."""

from __future__ import annotations

import email.utils
import errno
import http.client
import socket
import ssl
import time
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from avow.cli.api import Api, path_of
from avow.cli.doctor_finding import Finding
from avow.cli.doctor_install import installed
from avow.cli.doctor_reach import check_reach, check_token
from avow.cli.local import listeners
from avow.cli.show import number, numbers, plural
from avow.cli.view import ClusterView, gather
from avow.errors import AvowError, Offline
from avow.peer.access import check_exposure, is_loopback, link_contexts, server_context
from avow.peer.settings import Settings, address

ASK_S: Final = 2.0
OFFSET_S: Final = 2.0  # the Date header has whole seconds
LAG_MESSAGES: Final = 10_000


def check_ports(settings: Settings) -> list[Finding]:
    return [_port(getattr(settings, name), name=name) for name in ("listen", "peer_listen")]


def _port(text: str, *, name: str) -> Finding:
    host, port = address(text, name=name)
    flag = f"--{name.replace('_', '-')}"
    if port == 0:
        return Finding("port", "ok", f"{flag} {text}: a free one will be taken")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return Finding("port", "fail", f"{flag} {text} needs more rights", "choose a port above 1023")
        except OSError as error:
            return _unusable(flag, text, port, error)
    return Finding("port", "ok", f"{flag} {text} is free")


def _unusable(flag: str, text: str, port: int, error: OSError) -> Finding:
    if error.errno != errno.EADDRINUSE:
        return Finding("port", "fail", f"{flag} {text}: {error.strerror}", "use an address of this machine")
    user = listeners({port}).get(port)
    if user is None:
        return Finding("port", "warn", f"{flag} {text} is taken by another process", f"choose another {flag}")
    text += f" is taken by process {user.pid}: {user.command}"
    if "avow" in user.command:
        return Finding("port", "ok", f"{flag} {text}")
    return Finding("port", "warn", f"{flag} {text}", f"end it, or choose another {flag}")


# ---------------------------------------------------------------------- who is let in


def check_access(settings: Settings) -> list[Finding]:
    """The very checks of `avow serve`: what they refuse, it refuses."""
    try:
        check_exposure(settings)
        tls = server_context(settings)
        mutual = link_contexts(settings)[0]
    except AvowError as error:
        return [Finding("access", "fail", str(error), "avow serve would not start like this")]
    who = "anybody on this machine" if not settings.tokens else f"tokens of {settings.tokens}"
    spoken = "HTTPS" if tls is not None else "HTTP"
    linked = "mutual TLS" if settings.tls_ca else "TLS" if mutual is not None else "no TLS"
    findings = [Finding("access", "ok", f"{settings.listen}: {spoken}, {who}; links {settings.peer_listen}: {linked}")]
    if settings.tokens and tls is None and not is_loopback(address(settings.listen, name="listen")[0]):
        findings.append(
            Finding("access", "warn", "tokens travel over the network in the clear", "set --tls-cert and --tls-key")
        )
    return findings


# ---------------------------------------------------------------------- the cluster


def check_cluster(api: Api, *, asked: bool) -> list[Finding]:
    """`asked`: somebody named the addresses, so silence there is a failure."""
    try:
        view = gather(api)
    except Offline as error:
        if asked or api.address:  # somebody answered, and then not any more
            return check_reach(api) or [Finding("cluster", "fail", str(error), "look at the peers' logs")]
        return [Finding("cluster", "ok", f"none runs at the usual ports ({_first(error)})", "")]
    except AvowError as error:
        told = (check_reach(api) if asked else []) + check_token(api)
        return told or [Finding("cluster", "fail", f"{error.code}: {error}", "look at the peers' logs")]
    return [*_unreached(api, asked=asked), *check_cluster_view(view), *_versions(api, view), *_clocks(api, view)]


def _unreached(api: Api, *, asked: bool) -> list[Finding]:
    """The cluster is there; an address of those named that leads nowhere will be missed when it is needed."""
    return [replace(finding, verdict="warn") for finding in check_reach(api)] if asked else []


def check_cluster_view(view: ClusterView) -> list[Finding]:
    full = [peer.number for peer in view.peers if peer.disk_full]
    found = [_quorum(view), _lanes(view), _lag(view)]
    if full:
        found.append(
            Finding("space", "fail", f"peer {numbers(full)} has no room and takes no writes", "free some there")
        )
    return found


def _quorum(view: ClusterView) -> Finding:
    voters = [peer for peer in view.peers if peer.voter]
    up = [peer for peer in voters if peer.up]
    down = [peer.number for peer in view.peers if not peer.up]
    text = f"{len(up)} of {plural(len(voters), 'voter')} up"
    if 2 * len(up) <= len(voters):
        return Finding("cluster", "fail", f"{text}: no quorum, nothing can be written", f"start peer {numbers(down)}")
    if down:
        return Finding("cluster", "warn", f"{text}; peer {numbers(down)} is down", "start it, or remove it for good")
    if len(voters) == 2:
        return Finding("cluster", "warn", text, "both are needed for a quorum: add a third")
    return Finding("cluster", "ok", text)


def _lanes(view: ClusterView) -> Finding:
    without = [
        f"{lane.queue}/{lane.lane}" for lane in view.lanes if lane.strategy == "two-phase" and not lane.coordinator
    ]
    if without:
        shown = ", ".join(without[:3])
        return Finding(
            "lanes", "fail", f"no coordinator for {shown}", "a quorum of its members must be up; see avow status"
        )
    return Finding("lanes", "ok", f"{plural(len(view.lanes), 'lane')}, each with a coordinator or an owner")


def _lag(view: ClusterView) -> Finding:
    behind = {peer.number: sum(lane.lag.get(peer.number, 0) for lane in view.lanes) for peer in view.peers if peer.up}
    worst = max(behind, key=lambda peer: behind[peer], default=0)
    if behind.get(worst, 0) > LAG_MESSAGES:
        text = f"peer {worst} is {number(behind[worst])} messages behind"
        return Finding(
            "lag", "warn", text, "it is catching up, or its disk or network is slow: look again with avow status"
        )
    return Finding("lag", "ok", "every peer that is up holds what the others hold")


def _versions(api: Api, view: ClusterView) -> list[Finding]:
    said = {peer.number: _version(api, peer.api) for peer in view.peers if peer.up}
    return judge_versions({peer: version for peer, version in said.items() if version}, here=installed("avow"))


def judge_versions(said: dict[int, str], *, here: str) -> list[Finding]:
    """One version among peers; ours need not be the same, and should not be newer than theirs for long."""
    if not said:
        return []
    by_version = {
        version: [peer for peer, one in said.items() if one == version] for version in sorted({*said.values()})
    }
    if len(by_version) > 1:
        text = ", ".join(f"{version}: peer {numbers(peers)}" for version, peers in by_version.items())
        return [Finding("versions", "warn", f"peers differ ({text})", "fine during an upgrade; finish it")]
    (version,) = by_version
    if here and here != version:
        advice = f"pip install avow=={version} here, or upgrade the peers one by one"
        return [Finding("versions", "warn", f"peers are {version}, and this avow is {here}", advice)]
    return [Finding("versions", "ok", f"every peer that is up is {version}")]


def _version(api: Api, address: str) -> str:
    try:
        document = api.only(address, timeout_s=ASK_S).get(path_of("openapi.json"))
        return str(document["info"]["version"])
    except (AvowError, KeyError, TypeError):
        return ""


def _clocks(api: Api, view: ClusterView) -> list[Finding]:
    offsets = {peer.number: _offset_s(peer.api, api.ca) for peer in view.peers if peer.up}
    return judge_clocks({peer: offset for peer, offset in offsets.items() if offset is not None})


def judge_clocks(known: dict[int, float]) -> list[Finding]:
    wrong = {peer: offset for peer, offset in known.items() if abs(offset) > OFFSET_S}
    if wrong:
        text = ", ".join(f"peer {peer} is {offset:+.0f} s from here" for peer, offset in wrong.items())
        return [Finding("clock", "warn", text, "ages and deadlines will be off by as much; use a time service")]
    return [Finding("clock", "ok", f"{plural(len(known), 'peer')} within {OFFSET_S:g} s of here")] if known else []


def _offset_s(base: str, ca: str) -> float | None:
    """Their clock minus ours, from the Date header; None when it is not told."""
    parts = urlsplit(base)
    host = parts.hostname or ""
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=ca or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=ASK_S, context=trust
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=ASK_S)
    try:
        connection.request("GET", "/healthz")
        said = connection.getresponse().getheader("Date")
        return email.utils.parsedate_to_datetime(said).timestamp() - time.time() if said else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _first(error: Offline) -> str:
    return str(error).partition(";")[0].removeprefix("no peer answered (").removesuffix(")")
