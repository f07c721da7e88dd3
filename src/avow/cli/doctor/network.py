"""Checks of the network: the peer's ports, its access settings, and the cluster, if one answers.

For a caller, a wrong port, http instead of https, an untrusted certificate and a token without rights all look like "it
does not work". If addresses were given and the cluster does not answer, each address is tried once: does something
listen there, which protocol does it speak, for which name is its certificate, and how does it answer the token?
"""

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

from avow.cli.cluster_api import Api, path_of
from avow.cli.doctor.finding import Finding
from avow.cli.doctor.install import installed
from avow.cli.local_listeners import listeners
from avow.cli.output import number, numbers, plural
from avow.cli.status import ClusterView, gather
from avow.errors import AvowError, Forbidden, NotAuthenticated, Offline
from avow.server.access import check_exposure, is_loopback, link_contexts, server_context
from avow.server.settings import Settings, address

REQUEST_S: Final = 2.0
OFFSET_S: Final = 2.0  # the Date header has whole seconds
LAG_MESSAGES: Final = 10_000
LINK_PORT_ADVICE: Final = "this may be a link port (peer_listen): use the port of listen"
_NO_TLS_ERRORS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def check_ports(settings: Settings) -> list[Finding]:
    return [_port(getattr(settings, name), name=name) for name in ("listen", "peer_listen")]


def _port(text: str, *, name: str) -> Finding:
    host, port = address(text, name=name)
    flag = f"--{name.replace('_', '-')}"
    if port == 0:
        return Finding("port", "ok", f"{flag} {text}: a free port will be chosen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return Finding("port", "fail", f"{flag} {text} needs privileges", "choose a port above 1023")
        except OSError as error:
            return _unusable(flag, text, port, error)
    return Finding("port", "ok", f"{flag} {text} is free")


def _unusable(flag: str, text: str, port: int, error: OSError) -> Finding:
    if error.errno != errno.EADDRINUSE:
        return Finding("port", "fail", f"{flag} {text}: {error.strerror}", "use an address of this machine")
    user = listeners({port}).get(port)
    if user is None:
        return Finding("port", "warn", f"{flag} {text} is in use by another process", f"choose another {flag}")
    text += f" is in use by process {user.pid}: {user.command}"
    if "avow" in user.command:
        return Finding("port", "ok", f"{flag} {text}")
    return Finding("port", "warn", f"{flag} {text}", f"end that process, or choose another {flag}")


# ---------------------------------------------------------------------- access


def check_access(settings: Settings) -> list[Finding]:
    """The same checks as `avow serve` makes at its start."""
    try:
        check_exposure(settings)
        tls = server_context(settings)
        mutual = link_contexts(settings)[0]
    except AvowError as error:
        return [Finding("access", "fail", str(error), "avow serve refuses to start with this; correct it")]
    who = "anyone on this machine" if not settings.tokens else f"tokens of {settings.tokens}"
    protocol = "HTTPS" if tls is not None else "HTTP"
    links = "mutual TLS" if settings.tls_ca else "TLS" if mutual is not None else "no TLS"
    findings = [Finding("access", "ok", f"{settings.listen}: {protocol}, {who}; links {settings.peer_listen}: {links}")]
    if settings.tokens and tls is None and not is_loopback(address(settings.listen, name="listen")[0]):
        findings.append(
            Finding("access", "warn", "tokens are sent over the network unencrypted", "set --tls-cert and --tls-key")
        )
    return findings


# ---------------------------------------------------------------------- the cluster


def check_cluster(api: Api, *, asked: bool) -> list[Finding]:
    """`asked`: the addresses were given explicitly, so it is a failure if they do not answer."""
    try:
        view = gather(api)
    except Offline as error:
        if asked or api.address:  # a peer answered before, and then no more
            return check_reach(api) or [Finding("cluster", "fail", str(error), "read the peers' logs")]
        return [Finding("cluster", "ok", f"no cluster runs at the default ports ({_first(error)})", "")]
    except AvowError as error:
        found = (check_reach(api) if asked else []) + check_token(api)
        return found or [Finding("cluster", "fail", f"{error.code}: {error}", "read the peers' logs")]
    return [*_unreached(api, asked=asked), *check_cluster_view(view), *_versions(api, view), *_clocks(api, view)]


def _unreached(api: Api, *, asked: bool) -> list[Finding]:
    """The cluster answers, so an unusable address is only a warning: it will fail when it is needed."""
    return [replace(finding, verdict="warn") for finding in check_reach(api)] if asked else []


def check_cluster_view(view: ClusterView) -> list[Finding]:
    full = [peer.number for peer in view.peers if peer.disk_full]
    found = [_quorum(view), _lanes(view), _lag(view)]
    if full:
        found.append(
            Finding(
                "space", "fail", f"peer {numbers(full)}: the disk is full and writes are refused", "free space there"
            )
        )
    return found


def _quorum(view: ClusterView) -> Finding:
    voters = [peer for peer in view.peers if peer.voter]
    up = [peer for peer in voters if peer.up]
    down = [peer.number for peer in view.peers if not peer.up]
    text = f"{len(up)} of {plural(len(voters), 'voter')} up"
    if 2 * len(up) <= len(voters):
        return Finding("cluster", "fail", f"{text}: no quorum, no writes are possible", f"start peer {numbers(down)}")
    if down:
        return Finding("cluster", "warn", f"{text}; peer {numbers(down)} is down", "start it, or remove it permanently")
    if len(voters) == 2:
        return Finding("cluster", "warn", text, "a quorum needs both: add a third peer")
    return Finding("cluster", "ok", text)


def _lanes(view: ClusterView) -> Finding:
    without = [
        f"{lane.queue}/{lane.lane}" for lane in view.lanes if lane.strategy == "two-phase" and not lane.coordinator
    ]
    if without:
        shown = ", ".join(without[:3])
        return Finding(
            "lanes",
            "fail",
            f"no coordinator for {shown}",
            "start its members until a quorum of them is up; avow status lists them",
        )
    return Finding("lanes", "ok", f"{plural(len(view.lanes), 'lane')}, each with a coordinator or an owner")


def _lag(view: ClusterView) -> Finding:
    behind = {peer.number: sum(lane.lag.get(peer.number, 0) for lane in view.lanes) for peer in view.peers if peer.up}
    worst = max(behind, key=lambda peer: behind[peer], default=0)
    if behind.get(worst, 0) > LAG_MESSAGES:
        text = f"peer {worst} is {number(behind[worst])} messages behind"
        return Finding(
            "lag", "warn", text, "it is catching up, or its disk or network is slow: watch it with avow status --watch"
        )
    return Finding("lag", "ok", f"no peer that is up is more than {number(LAG_MESSAGES)} messages behind")


def _versions(api: Api, view: ClusterView) -> list[Finding]:
    versions = {peer.number: _version(api, peer.api) for peer in view.peers if peer.up}
    return judge_versions({peer: version for peer, version in versions.items() if version}, here=installed("avow"))


def judge_versions(versions: dict[int, str], *, here: str) -> list[Finding]:
    """All peers should run one version. This command may be newer, but not for long."""
    if not versions:
        return []
    by_version = {
        version: [peer for peer, one in versions.items() if one == version] for version in sorted({*versions.values()})
    }
    if len(by_version) > 1:
        text = ", ".join(f"{version}: peer {numbers(peers)}" for version, peers in by_version.items())
        return [Finding("versions", "warn", f"peers differ ({text})", "normal during an upgrade; finish the upgrade")]
    (version,) = by_version
    if here and here != version:
        advice = f"pip install avow=={version} here, or upgrade the peers one by one"
        return [Finding("versions", "warn", f"peers run {version}, but this avow is {here}", advice)]
    return [Finding("versions", "ok", f"every peer that is up runs {version}")]


def _version(api: Api, address: str) -> str:
    try:
        document = api.only(address, timeout_s=REQUEST_S).get(path_of("openapi.json"))
        return str(document["info"]["version"])
    except (AvowError, KeyError, TypeError):
        return ""


def _clocks(api: Api, view: ClusterView) -> list[Finding]:
    offsets = {peer.number: _offset_s(peer.api, api.ca) for peer in view.peers if peer.up}
    return judge_clocks({peer: offset for peer, offset in offsets.items() if offset is not None})


def judge_clocks(known: dict[int, float]) -> list[Finding]:
    wrong = {peer: offset for peer, offset in known.items() if abs(offset) > OFFSET_S}
    if wrong:
        text = ", ".join(f"peer {peer}: {offset:+.0f} s" for peer, offset in wrong.items())
        advice = "message ages and deadlines are wrong by as much: use a time service (NTP)"
        return [Finding("clock", "warn", f"clocks differ from this machine ({text})", advice)]
    text = f"{plural(len(known), 'peer')} within {OFFSET_S:g} s of this machine"
    return [Finding("clock", "ok", text)] if known else []


def _offset_s(base: str, ca: str) -> float | None:
    """The peer's clock minus ours, from the Date header; None if there is no answer."""
    parts = urlsplit(base)
    host = parts.hostname or ""
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=ca or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=REQUEST_S, context=trust
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=REQUEST_S)
    try:
        connection.request("GET", "/healthz")
        date = connection.getresponse().getheader("Date")
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time() if date else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _first(error: Offline) -> str:
    return str(error).partition(";")[0].removeprefix("no peer answered (").removesuffix(")")


# ---------------------------------------------------------------------- why an address does not answer


def check_reach(api: Api) -> list[Finding]:
    """One finding for each address that cannot be used."""
    return [finding for address in api.addresses if (finding := check_address(address, ca=api.ca)) is not None]


def check_address(address: str, *, ca: str) -> Finding | None:
    """None if an Avow peer answers there."""
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 0
    try:
        with socket.create_connection((host, port), REQUEST_S):
            pass
    except socket.gaierror:
        return _unreachable(address, f"the host name {host} cannot be resolved", "check it in --api or AVOW_API")
    except TimeoutError:
        advice = "check the host and port; a firewall may block it, or the machine may be down"
        return _unreachable(address, f"no answer within {REQUEST_S:g} s", advice)
    except OSError as error:
        advice = "start a peer there (avow up, avow serve) or correct the port: --api takes API ports, not link ports"
        return _unreachable(address, (error.strerror or str(error)).lower(), advice)
    if parts.scheme == "https":
        return _check_https(address, host, port, ca)
    return _check_http(address, host, port)


def _check_http(address: str, host: str, port: int) -> Finding | None:
    connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)
    try:
        return _check_health(address, connection)
    except (OSError, http.client.HTTPException):
        if speaks_tls(host, port):
            advice = f"use https://{host}:{port}; with a private CA, also --ca or AVOW_CA"
            return _unreachable(address, "the server speaks HTTPS, not HTTP", advice)
        return _unreachable(address, "the server does not speak HTTP", LINK_PORT_ADVICE)
    finally:
        connection.close()


def _check_https(address: str, host: str, port: int, ca: str) -> Finding | None:
    trust = ssl.create_default_context(cafile=ca or None)
    connection = http.client.HTTPSConnection(host, port, timeout=REQUEST_S, context=trust)
    try:
        return _check_health(address, connection)
    except ssl.SSLCertVerificationError as error:
        if "Hostname mismatch" in error.verify_message or "IP address mismatch" in error.verify_message:
            return _unreachable(
                address, f"its certificate is not valid for {host}", "use a host name that the certificate contains"
            )
        advice = f"{ca} is not the CA that signed it" if ca else "give the CA's PEM file with --ca or AVOW_CA"
        return _unreachable(address, f"its certificate is not trusted: {error.verify_message}", advice)
    except ssl.SSLError as error:
        if any(reason in str(error).upper() for reason in _NO_TLS_ERRORS):
            return _unreachable(address, "the server speaks HTTP, not HTTPS", f"use http://{host}:{port}")
        return _unreachable(address, f"TLS failed: {error.reason or error}", LINK_PORT_ADVICE)
    except (OSError, http.client.HTTPException) as error:
        return _unreachable(address, str(error) or type(error).__name__, LINK_PORT_ADVICE)
    finally:
        connection.close()


def _check_health(address: str, connection: http.client.HTTPConnection) -> Finding | None:
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    body = response.read(1000)
    if response.status == 200 and b"alive" in body:
        return None
    text = f"the server is not an Avow peer (status {response.status})"
    return _unreachable(address, text, "correct the port in --api or AVOW_API")


def speaks_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake succeeds. The certificate is not checked, since no request is sent."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), REQUEST_S) as plain, unchecked.wrap_socket(plain):
            return True
    except OSError:
        return False


def check_token(api: Api) -> list[Finding]:
    """A finding if the first peer that answers refuses the token."""
    try:
        api.get(path_of("queues"))
        api.get(path_of("peers"))
    except NotAuthenticated as error:
        advice = f"give {'a valid token' if api.token else 'a token'} with --token or AVOW_TOKEN"
        return [Finding("token", "fail", str(error).partition(";")[0], advice)]
    except Forbidden as error:
        advice = "ask the cluster's administrator: rights are set in the tokens file of the peers"
        return [Finding("token", "fail", str(error).partition(";")[0], advice)]
    except AvowError as error:
        return [Finding("cluster", "fail", f"{error.code}: {error}", "read the peers' logs")]
    return []


def _unreachable(address: str, found: str, advice: str) -> Finding:
    return Finding("cluster", "fail", f"{address}: {found}", advice)
