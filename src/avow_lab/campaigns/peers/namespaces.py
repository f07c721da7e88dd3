"""A network namespace for each peer, as root: a partition then drops packets, not bytes in a proxy.

    root namespace    clients, and a bridge
    one namespace     each peer, with an address on that bridge
    a partition       a route that drops what one peer sends to another, one direction at a time
    a lossy link      a rule of nftables that drops a share of what arrives from another peer

TCP does the rest: connections stay open, and bytes are retransmitted at growing intervals. A peer refuses addresses
beyond loopback without tokens and mutual TLS, so a campaign in namespaces uses both. The `openssl` command makes the
certificates, which last as long as the campaign.

Links cannot be slowed here: that needs a queueing discipline (netem) that many kernels do not have.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from avow.errors import Offline
from avow.testing.cluster import LocalCluster, PeerProcess
from avow.testing.cluster_process import START_S
from avow_lab.campaigns.peers.network import Pair

PEERS_MAX: Final = 60  # in all: the numbers of removed peers are not reused
_TRIES: Final = 20
_TABLE: Final = "avow_prove"


def why_not() -> str:
    """Why namespaces do not work on this machine; empty when they do."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "openssl") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need the commands ip and openssl; there is no {missing[0]}"
    name = f"avow{os.getpid()}t"
    tried = _try("ip", "netns", "add", name) or _try("ip", "-n", name, "link", "add", "b0", "type", "bridge")
    _try("ip", "netns", "del", name)
    return f"network namespaces do not work here: {tried}" if tried else ""


class NamespaceNetwork:
    kind = "namespaces"
    note = "slow links need the proxy (--network proxy)"
    slows = False
    clients = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"av{os.getpid()}"
        self._namespaces: list[str] = []
        self._of_peer: dict[int, int] = {}  # number of a peer -> number of its namespace, from 1
        self._held: set[Pair] = set()
        self._lossy: set[int] = set()  # namespaces with such rules
        self._token = secrets.token_hex(16)
        self._tokens = folder / "tokens.toml"
        digest = hashlib.sha256(self._token.encode()).hexdigest()
        self._tokens.write_text(f'[[token]]\nname = "prove"\nsha256 = "{digest}"\nadmin = true\n')
        try:
            self._subnet = self._open_bridge()
            make_certificates(folder, [self._address(number) for number in range(1, PEERS_MAX + 1)])
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ peers

    def client_url(self, url: str) -> str:
        return url

    def cluster(self, peers: int) -> NamespacedCluster:
        for number in range(1, peers + 1):
            self._of_peer[number] = self._open_namespace()
        return NamespacedCluster(
            peers,
            folder=self._folder,
            hosts={number: self._address(namespace) for number, namespace in self._of_peer.items()},
            prefix=lambda number: self._command(self._of_peer[number]),
            settings={
                "tokens": str(self._tokens),
                "tls_cert": str(self._folder / "peer.pem"),
                "tls_key": str(self._folder / "peer.key"),
                "tls_ca": str(self._folder / "ca.pem"),
            },
            token=self._token,
            ca=str(self._folder / "ca.pem"),
        )

    def add(self, cluster: LocalCluster, folder: Path) -> int:
        assert isinstance(cluster, NamespacedCluster)
        namespace = self._open_namespace()
        number = cluster.add_at(self._address(namespace), self._command(namespace), folder=folder)
        self._of_peer[number] = namespace
        return number

    def _command(self, namespace: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._namespaces[namespace - 1])

    # ------------------------------------------------------------------ faults

    def hold(self, pairs: Iterable[Pair], *, cut: bool) -> str:
        """Drop packets from one peer to the other; `cut` makes no difference here. Returns a description of the
        fault."""
        del cut
        for a, b in pairs:
            if (a, b) not in self._held:
                self._route("add", a, b)
                self._held.add((a, b))
        return "packets dropped"

    def lose(self, pairs: Iterable[Pair], percent: int) -> str:
        """Drop this share of the packets on receipt, at random. The sender learns nothing, not even that there is no
        route. Without nftables all packets are dropped, when they are sent."""
        pairs = list(pairs)
        rules: dict[int, list[str]] = {}
        for a, b in pairs:
            share = "" if percent >= 100 else f" numgen random mod 100 < {percent}"
            rules.setdefault(self._of_peer[b], []).append(f"ip saddr {self._address(self._of_peer[a])}{share} drop")
        for namespace, lines in rules.items():
            chain = f"table ip {_TABLE} {{ chain input {{ type filter hook input priority 0; {'; '.join(lines)}; }} }}"
            if shutil.which("nft") is None or _try(*self._command(namespace), "nft", chain):
                return self.hold(pairs, cut=False)
            self._lossy.add(namespace)
        return f"{percent} % of the packets dropped on receipt"

    def slow(self, pairs: Iterable[Pair], delay_s: float) -> None:
        raise Offline(f"links {list(pairs)} cannot be slowed by {delay_s:g} s; {self.note}")

    def heal(self) -> None:
        for a, b in sorted(self._held):
            self._route("del", a, b)
        self._held.clear()
        for namespace in sorted(self._lossy):
            _do(*self._command(namespace), "nft", f"delete table ip {_TABLE}")
        self._lossy.clear()

    def _route(self, action: str, a: int, b: int) -> None:
        here, there = self._namespaces[self._of_peer[a] - 1], self._address(self._of_peer[b])
        _do("ip", "-n", here, "route", action, "blackhole", f"{there}/32")

    def unplug(self) -> None:
        """Every peer loses every packet, without an error at either end, as behind a firewall that drops them.
        Addresses stay resolved, so that nothing but TCP has to recover."""
        hardware = {number: self._hardware_of(number) for number in self._of_peer.values()}
        for number, namespace in enumerate(self._namespaces, 1):
            for other, address in hardware.items():
                if other != number:
                    to = (self._address(other), "lladdr", address, "dev", "eth0", "nud", "permanent")
                    _do("ip", "-n", namespace, "neighbour", "replace", *to)
        for number in self._of_peer.values():
            _do("ip", "link", "set", f"{self._name}v{number}", "nomaster")

    def plug(self) -> None:
        for number in self._of_peer.values():
            _do("ip", "link", "set", f"{self._name}v{number}", "master", f"{self._name}b")

    def _hardware_of(self, number: int) -> str:
        return (
            _do("ip", "-n", self._namespaces[number - 1], "-o", "link", "show", "eth0")
            .split("link/ether ")[1]
            .split()[0]
        )

    def close(self) -> None:
        for namespace in self._namespaces:
            _try("ip", "netns", "del", namespace)
        _try("ip", "link", "del", f"{self._name}b")

    # ------------------------------------------------------------------ parts

    def _open_bridge(self) -> str:
        """Make a bridge with the last address of a subnet that is free on this machine. Returns the subnet."""
        bridge = f"{self._name}b"
        _do("ip", "link", "add", bridge, "type", "bridge")
        taken = _do("ip", "-4", "route", "show")
        rng = random.Random()
        for _ in range(_TRIES):
            subnet = f"10.{rng.randint(64, 254)}.{rng.randint(0, 254)}"
            if subnet not in taken:
                _do("ip", "address", "add", f"{subnet}.254/24", "dev", bridge)
                _do("ip", "link", "set", bridge, "up")
                return subnet
        raise Offline("no free subnet for network namespaces was found; nothing was started")

    def _open_namespace(self) -> int:
        number = len(self._namespaces) + 1
        if number > PEERS_MAX:
            raise Offline(f"a campaign in namespaces has at most {PEERS_MAX} peers in all; no peer was added")
        namespace, outside = f"{self._name}-{number}", f"{self._name}v{number}"
        _do("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)
        _do("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _do("ip", "link", "set", outside, "master", f"{self._name}b", "up")
        _do("ip", "-n", namespace, "link", "set", "lo", "up")
        _do("ip", "-n", namespace, "addr", "add", f"{self._address(number)}/24", "dev", "eth0")
        _do("ip", "-n", namespace, "link", "set", "eth0", "up")
        return number

    def _address(self, number: int) -> str:
        return f"{self._subnet}.{number}"


class NamespacedCluster(LocalCluster):
    """Can add a peer at an address and in a namespace of its own."""

    def add_at(self, host: str, prefix: Sequence[str], *, folder: Path) -> int:
        api, link = (f"{host}:{self.ports.take()}" for _ in range(2))
        flags = {"listen": api, "peer_listen": link, "join": self._join_address(0), **self.settings}
        process = PeerProcess(folder=folder, flags=flags, prefix=prefix, token=self.token, program=self.program)
        process.start()
        try:
            number = process.wait_serving(START_S).number
        except BaseException:
            process.kill()
            raise
        self.processes[number], self._apis[number], self._links[number] = process, api, link
        return number


# ---------------------------------------------------------------------- certificates


def make_certificates(folder: Path, addresses: Sequence[str]) -> None:
    """ca.pem, and peer.pem with peer.key for all of these addresses, valid for two days."""
    names = ",".join(f"IP:{address}" for address in addresses)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"), "-subj", "/CN=avow prove"]
    _do("openssl", "req", "-x509", *key, *authority, "-days", "2")
    request = ["-keyout", str(folder / "peer.key"), "-out", str(folder / "peer.csr"), "-subj", "/CN=avow peer"]
    _do("openssl", "req", *key, *request)
    (folder / "peer.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    signing = ["-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-days", "2"]
    made = ["-in", str(folder / "peer.csr"), "-out", str(folder / "peer.pem"), "-extfile", str(folder / "peer.ext")]
    _do("openssl", "x509", "-req", *made, *signing)


def _do(*command: str) -> str:
    """The command's output. Raises Offline with its standard error when it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Offline(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _try(*command: str) -> str:
    """The error of a command that may fail; empty when it succeeds."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return (done.stderr.strip() or "it failed") if done.returncode else ""
