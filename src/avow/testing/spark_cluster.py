"""A standalone Spark cluster on this machine: a master and workers, started from the installed PySpark.

    with SparkCluster(2) as cluster:
        spark = session(master=cluster.url, config=cluster.settings())
        cluster.kill_executor()

Each worker has its own address (127.0.0.2, 127.0.0.3, ...): Spark repeats a slow task only on another host, so with one
address there would be no speculation. On Linux all of 127.0.0.0/8 is this machine. Executors are children of their
worker and outlive a killed driver for a moment, as in a real cluster. Leaving the block kills the cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from avow.errors import InvalidRequest, Offline
from avow.spark.java import find_java
from avow.testing import processes
from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
REGISTERED: Final = "Registering worker"
HOST: Final = "127.0.0.1"
START_S: Final = 120.0
STOP_S: Final = 60.0
QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # in short runs optimizing compilers do not pay off
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "200ms",
}
"""Aggressive speculation: of two tasks, the slower one is started a second time when the other is done."""


class SparkCluster:
    """`cores` and `memory` are per worker."""

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "1g", folder: Path | str | None = None
    ) -> None:
        if not 1 <= workers <= 200:
            raise InvalidRequest(f"a cluster has 1 to 200 workers, not {workers}; nothing was started")
        self._workers, self._cores, self._memory = workers, cores, memory
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="avow-spark-")) if folder is None else Path(folder)
        self._ports = Ports()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"spark://{HOST}:{self._ports.take()}"

    def __enter__(self) -> SparkCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Returns when the master has registered every worker."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port = self.url.rpartition(":")[2]
        self._launch("master", [MASTER, "--host", HOST, "--port", port, "--webui-port", "0"])
        wait_until(lambda: "Starting Spark master" in self._log("master"), timeout_s=START_S, what=self.log_tail)
        size = ["--cores", str(self._cores), "--memory", self._memory, "--webui-port", "0"]
        for number in range(1, self._workers + 1):
            place = ["--host", f"127.0.0.{number + 1}", "--work-dir", str(self.folder / f"work-{number}")]
            self._launch(f"worker-{number}", [WORKER, *place, *size, self.url])
        wait_until(self._complete, timeout_s=START_S, what=self.log_tail)

    def close(self) -> None:
        """Kills all processes. Idempotent."""
        below = [pid for process in self._processes.values() for pid in processes.descendants(process.pid)]
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(STOP_S)
        processes.kill(*below)
        self._processes.clear()
        self._ports.release()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def settings(self, *, executor_memory: str = "512m") -> dict[str, str]:
        """Settings for a driver on this machine, with speculation."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": executor_memory,
            "spark.executor.extraJavaOptions": QUICK,
            **SPECULATION,
        }

    def executors(self) -> list[int]:
        """The process ids of the executors."""
        below = [pid for process in self._processes.values() for pid in processes.descendants(process.pid)]
        return sorted(pid for pid in below if _is_executor(pid))

    def kill_executor(self, choice: float = 0.0) -> bool:
        """kill -9 for one executor, JVM and Python; False if there is none. Its worker starts another one."""
        running = self.executors()
        if not running:
            return False
        pid = running[int(choice * len(running))]
        below = processes.descendants(pid)
        return processes.kill(pid, *below) > 0

    def log_tail(self) -> str:
        lines = [f"{name}: {line}" for name in self._processes for line in self._log(name).splitlines()[-3:]]
        return f"the Spark cluster's logs end with: {' | '.join(lines) or '(empty)'}"

    # ------------------------------------------------------------------ parts

    def _complete(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Offline(f"Spark's {name} ended with {process.returncode}: {self.log_tail()}")
        return self._log("master").count(REGISTERED) >= self._workers

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _launch(self, name: str, command: Sequence[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }
        bind = shutil.which("setpriv")  # so that it ends with this process
        bound = [bind, "--pdeathsig", "KILL", "--"] if bind and sys.platform == "linux" else []
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*bound, str(home / "bin" / "spark-class"), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )


def _is_executor(pid: int) -> bool:
    try:
        return EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it ended meanwhile
