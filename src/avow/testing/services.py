"""Real PostgreSQL, MariaDB and Redis servers: each a separate instance on a free port in a temporary folder.

    with PostgresServer() as server:         `dsn` is its address, `kill` is kill -9, `start` restarts it

They are configured as in production: every commit is synced. Servers that refuse to run as root run as the user of
their package; this user must have access to the folder, so it is not below a private one. Each server ends with the
process that started it. The programs come from Debian's packages postgresql, mariadb-server and redis-server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final, Self

from avow.errors import Offline
from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until

START_S: Final = 60.0
STOP_S: Final = 60.0
_PAUSE_S: Final = 0.02
# Linux kills a child with the thread that started it, so this thread never ends.
_spawner: Final = ThreadPoolExecutor(1)
_ports: Final = Ports()
_START_ATTEMPTS: Final = 5  # another process may take the port that was free a moment ago


def free_port() -> int:
    """A port that no outgoing connection takes while the server is down."""
    return _ports.take()


def program(name: str) -> str:
    """The path of a program. Debian installs PostgreSQL's programs and mariadbd outside the usual PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    places = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", *map(str, reversed(versions))]
    found = shutil.which(name, path=os.pathsep.join(places))
    if not found:
        raise Offline(f"{name} is not installed; nothing was started. Install it with make services")
    return found


def _runs(pid: int) -> bool:
    """False once its files and sockets are closed, even if its parent has not collected its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[1]) == pid:
                found.append(int(path.parent.name))
    return found


class Server(ABC):
    """One server process. `user`: the user to run it as if we are root."""

    user: ClassVar[str] = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"avow-{type(self).__name__.lower()}-"))
        self.data = self.folder / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    @property
    @abstractmethod
    def dsn(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> None:
        """Initializes the data folder, once, before the first start."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Tests a whole request, not only the port: a server in recovery accepts connections but refuses requests."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers. After `kill` it has the same port and data."""
        if not self._prepared:
            self._own()
            self._prepare()
            self._prepared = True
        for _ in range(1 if self.port else _START_ATTEMPTS):
            self.port = self.port or free_port()
            if self._started():
                return
            self.port = 0
        raise Offline(f"{self._command()[0]} did not start:\n{self.log()[-3000:]}")

    def _started(self) -> bool:
        self._process = _spawner.submit(self._spawn).result()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(_PAUSE_S)
        self.kill()
        return False

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self._as_user(self._command()), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _own(self) -> None:
        self.data.mkdir(exist_ok=True)
        if os.getuid() == 0 and self.user:
            self.folder.chmod(0o755)
            shutil.chown(self.folder, self.user, self.user)
            shutil.chown(self.data, self.user, self.user)

    def _as_user(self, command: list[str]) -> list[str]:
        ending = ["setpriv", "--pdeathsig", "KILL"]
        if os.getuid() == 0 and self.user:
            ending += [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [*ending, *command]

    def _run(self, command: list[str]) -> None:
        ran = subprocess.run(self._as_user(command), capture_output=True, timeout=START_S, check=False)
        if ran.returncode:
            raise Offline(f"{command[0]} failed:\n{ran.stdout.decode()}\n{ran.stderr.decode()}")

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        """kill -9 for the server and its child processes. Afterwards all their connections are closed."""
        if self._process is None:
            return
        children = _children(self.pid)
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_S)
        self._process = None
        wait_until(lambda: not any(map(_runs, children)), timeout_s=STOP_S)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """PostgreSQL's children leave its process group, so each one is signalled."""
        for pid in (self.pid, *_children(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """Kills the server and removes its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostgresServer(Server):
    user = "postgres"

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _prepare(self) -> None:
        made = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run([program("initdb"), *made, "-D", str(self.data)])

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 200,
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.data), *flags]

    def _answers(self) -> bool:
        asked = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres"]
        return subprocess.run(asked, timeout=START_S, check=False).returncode == 0


class MariaDBServer(Server):
    """`options` are added to the command line. Each server has its own folder for temporary tables, since a starting
    server removes all that it finds there."""

    user = "mysql"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options

    @property
    def dsn(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/avow"

    def _prepare(self) -> None:
        made = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        folders = [f"--datadir={self.data}", f"--tmpdir={self.folder}"]
        self._run([program("mariadb-install-db"), "--no-defaults", *made, *folders])
        (self.data / "avow").mkdir()  # a database is a folder
        if os.getuid() == 0:
            shutil.chown(self.data / "avow", self.user, self.user)

    def _command(self) -> list[str]:
        return [
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.folder}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--innodb-flush-log-at-trx-commit=1",
            "--skip-name-resolve",
            *self._options,
        ]

    def _answers(self) -> bool:
        """The server speaks first; a packet numbered 0 that starts with 10 is its greeting, 255 is an error."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                greeting = probe.recv(5)
        except OSError:
            return False
        return len(greeting) == 5 and greeting[4] == 10


class RedisServer(Server):
    """With `replica_of`, a replica of another server. By default every command is synced."""

    user = "redis"

    def __init__(self, *, appendfsync: str = "always", replica_of: RedisServer | None = None) -> None:
        super().__init__()
        self._appendfsync, self._replica_of = appendfsync, replica_of

    @property
    def dsn(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        command = [program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.data)]
        command += ["--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", ""]
        command += ["--repl-diskless-sync-delay", "0"]
        if self._replica_of is not None:
            command += ["--replicaof", "127.0.0.1", str(self._replica_of.port)]
        return command

    def _answers(self) -> bool:
        ready = b"\nloading:0" if self._replica_of is None else b"master_link_status:up"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                probe.sendall(b"INFO\r\nQUIT\r\n")
                return ready in b"".join(iter(lambda: probe.recv(65_536), b""))
        except OSError:
            return False
