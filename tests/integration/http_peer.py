"""A peer as its users meet it: a process started with `avow serve`, and plain HTTP towards it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from avow.testing.cluster_ports import Ports

START_S = 60.0
_PORTS = Ports()


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of the error it carries."""
        code: str = self.json["error"]["code"]
        return code

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class PeerProcess:
    def __init__(self, process: subprocess.Popen[str], announced: dict[str, Any]) -> None:
        self.process, self.announced = process, announced
        self.url: str = announced["api"]
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self.tls: ssl.SSLContext | None = None
        self.token: str | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
    ) -> Answer:
        """JSON unless `body` is bytes."""
        sent = dict(headers or {})
        token = token or self.token
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        if self.tls is None:
            connection = http.client.HTTPConnection(*self.address, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(*self.address, timeout=timeout_s, context=self.tls)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def talk(self, data: bytes, *, timeout_s: float = 60.0) -> bytes:
        """Sends raw bytes; returns all bytes until the peer closes."""
        with socket.create_connection(self.address, timeout=timeout_s) as connection:
            received = b""
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                while chunk := connection.recv(65536):
                    received += chunk
            return received

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> int:
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)


def start(folder: Path, **settings: object) -> subprocess.Popen[str]:
    flags = {"data": folder / "data", "listen": "127.0.0.1:0", "peer-listen": "127.0.0.1:0", **settings}
    command = [sys.executable, "-m", "avow.cli", "serve"]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stderr").open("w") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


def started(process: subprocess.Popen[str], folder: Path) -> PeerProcess:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the peer did not start: {(folder / 'stderr').read_text()}"
    return PeerProcess(process, json.loads(line))


@contextlib.contextmanager
def serving(folder: Path, **settings: object) -> Iterator[PeerProcess]:
    process = start(folder, **settings)
    try:
        yield started(process, folder)
    finally:
        finish(process)


@contextlib.contextmanager
def cluster(
    folder: Path, count: int, *, tls: ssl.SSLContext | None = None, token: str | None = None, **settings: object
) -> Iterator[list[PeerProcess]]:
    """Founders 1 to `count`, ready for requests."""
    founders = ",".join(f"{number}=127.0.0.1:{port}" for number, port in enumerate(free_ports(count), 1))
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(1, count + 1):
            own = founders.split(",")[number - 1].partition("=")[2]
            processes.append(
                start(folder / str(number), **{"peer-listen": own, "number": number, "founders": founders, **settings})
            )
        peers = [started(process, folder / str(number)) for number, process in enumerate(processes, 1)]
        for peer in peers:
            peer.tls, peer.token = tls, token
            wait_until(lambda peer=peer: peer.ask("GET", "/readyz").status == 200)  # type: ignore[misc]
        wait_until(lambda: all(len(peer.ask("GET", "/v1/peers").json["peers"]) == count for peer in peers))
        yield peers
    finally:
        for process in processes:
            finish(process)


def finish(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(60)
    if process.stdout is not None:
        process.stdout.close()


def free_ports(count: int) -> list[int]:
    return [_PORTS.take() for _ in range(count)]


def wait_until(true: Callable[[], bool], *, timeout_s: float = START_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
