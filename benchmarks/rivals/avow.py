"""Avow itself: three peers, a two-phase queue with one lane, every acknowledged message synced by a quorum.

One client process uses the public Python client; 64 connections are driven by the C load generator, as those of the
other systems are, because 64 Python clients in one process would measure the interpreter.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow.wire.batch import encode_batch
from benchmarks.rivals.avow_load import Order
from benchmarks.rivals.system import PATIENCE_S, parse_sample, run_load
from benchmarks.rivals.tools import compile_load
from benchmarks.rivals.work import MESSAGE_BYTES, Missing, Sample, Work


class AvowSystem:
    name = "Avow"
    version = importlib.metadata.version("avow")
    notes = "two-phase, one lane"
    durability = "quorum, fdatasync on each"
    client = "Python (avow.connect); C, HTTP over sockets for 64 connections"

    def __init__(self, folder: Path, *, source: Path | None = None) -> None:
        """`source` is the `src` folder of another build: peers and clients then run its code instead of ours."""
        self._folder = folder
        self._environment = {"PYTHONPATH": str(source)} if source is not None else {}
        words = tuple(f"{name}={value}" for name, value in self._environment.items())
        self._cluster = LocalCluster(3, folder=folder, prefix=lambda _: ("env", *words) if words else ())
        self._rounds = 0

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.close()

    def run(self, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        queue = self.create_queue()
        try:
            return self.run_on(queue, work, seconds=seconds, warmup_s=warmup_s)
        finally:
            self.delete_queue(queue)

    def run_on(self, queue: str, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        if work.connections > 1:
            return self._run_c(queue, work, seconds=seconds, warmup_s=warmup_s)
        order = self.order("write", queue, window=work.window, batch=work.batch, seconds=seconds, warmup_s=warmup_s)
        return self.carry_out(order, timeout_s=seconds + warmup_s + PATIENCE_S)

    def order(self, do: str, queue: str, **more: Any) -> Order:
        return Order(do=do, addresses=self._cluster.addresses, queue=queue, pids=self.pids, **more)

    def carry_out(self, order: Order, *, timeout_s: float) -> Sample:
        text = msgspec.json.encode(order).decode()
        command = [sys.executable, "-m", "benchmarks.rivals.avow_load", text]
        return parse_sample(command, timeout_s=timeout_s, environment=self._environment)

    @property
    def pids(self) -> list[int]:
        return [self._cluster.pid(number) for number in self._cluster.founders]

    def rss_mib(self) -> list[float]:
        return [round(self._cluster.rss_bytes(number) / (1 << 20), 1) for number in self._cluster.founders]

    def create_queue(self) -> str:
        """A fresh one that has a coordinator."""
        self._rounds += 1
        name = f"bench-{self._rounds}"
        self._call("POST", "/v1/queues", {"name": name, "strategy": "two-phase", "lanes": 1})
        wait_until(lambda: self._coordinator(name), what=f"a coordinator of {name}")
        return name

    def delete_queue(self, name: str) -> None:
        self._call("DELETE", f"/v1/queues/{name}")

    def _run_c(self, queue: str, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        record = self._folder.parent / "record"
        record.write_bytes(encode_batch([b"m" * MESSAGE_BYTES] * work.batch, write_id=os.urandom(16)))
        coordinator = self._coordinator(queue)
        port = int(self._cluster.api(coordinator).rpartition(":")[2])
        return run_load(
            compile_load("avow", self._folder.parent),
            work,
            port=port,
            target=queue,
            pids=self.pids,
            seconds=seconds,
            warmup_s=warmup_s,
            extra=str(record),
        )

    def _coordinator(self, queue: str) -> int:
        lanes = self._call("GET", f"/v1/queues/{queue}")["lanes"]
        return int(lanes[0]["coordinator"] or 0)

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Straight to the first peer, past any proxy the environment names."""
        request = urllib.request.Request(self._cluster.api(1) + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                decoded: dict[str, Any] = json.loads(answer.read() or b"{}")
                return decoded
        except urllib.error.HTTPError as error:
            raise Missing(f"Avow answered {method} {path} with {error.code}: {error.read()[:200]!r}") from error
