"""The very environment of deploy/compose.yaml, as three processes instead of three containers.

Only what a container has of its own is replaced: names and ports by free ones on loopback, /run/secrets and the volume
by folders. What must come of it: a cluster with mutual TLS between peers, HTTPS and a token for clients, and a health
check that is true of a peer in the cluster and false of one without a quorum.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.packaging.locking import DEPLOY

import avow
from avow.cli.cluster_api import Api
from avow.cli.doctor.finding import Finding
from avow.cli.doctor.network import check_cluster
from avow.errors import AvowError
from avow.server.access import check_exposure
from avow.server.settings import DESCRIPTIONS, ENVIRONMENT_PREFIX, load
from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def environment(name: str) -> dict[str, str]:
    """The container's environment from the compose file, without variables of the caller."""
    given = COMPOSE["services"][name]["environment"]
    return {key: VARIABLE.sub(lambda found: found[2], value) for key, value in given.items()}


class Container:
    """A process with the environment of one service."""

    def __init__(self, given: dict[str, str], log: Path) -> None:
        settings = {ENVIRONMENT_PREFIX + name.upper() for name in DESCRIPTIONS}
        clean = {name: value for name, value in os.environ.items() if name not in settings}
        self.environment = {**clean, **given}
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "avow.cli", "serve"],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def healthy(self) -> bool:
        checked = subprocess.run(
            [sys.executable, DEPLOY / "healthcheck.py"],
            env=self.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return checked.returncode == 0

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    command: list[str | Path] = [DEPLOY / "secrets.sh", folder, "localhost", "127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


def mounted(given: dict[str, str], secrets: Path) -> dict[str, str]:
    places = {f"/run/secrets/{name}": str(secrets / Path(one["file"]).name) for name, one in COMPOSE["secrets"].items()}
    return {name: places.get(value, value) for name, value in given.items()}


@pytest.fixture
def containers(secrets: Path, tmp_path: Path) -> Iterator[dict[str, Container]]:
    services = COMPOSE["services"]
    ports = Ports()
    with ExitStack() as closing:
        closing.callback(ports.release)
        api, link = ({name: ports.take() for name in services} for _ in range(2))
        made = {}
        for name in services:
            given = mounted(environment(name), secrets)
            for other, port in link.items():
                given["AVOW_FOUNDERS"] = given["AVOW_FOUNDERS"].replace(f"{other}:7500", f"127.0.0.1:{port}")
            given |= {"AVOW_LISTEN": f"127.0.0.1:{api[name]}", "AVOW_PEER_LISTEN": f"127.0.0.1:{link[name]}"}
            made[name] = Container({**given, "AVOW_DATA": str(tmp_path / name)}, tmp_path / f"{name}.log")
            closing.callback(made[name].close)
        yield made


def test_the_compose_file_sets_all_that_a_peer_needs_to_listen_beyond_loopback(secrets: Path) -> None:
    for name, service in COMPOSE["services"].items():
        settings = load({}, environment=mounted(environment(name), secrets))
        assert settings.listen.startswith("0.0.0.0:")
        check_exposure(settings)
        assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in [settings.listen.rpartition(":")[2]]]
        assert service["volumes"] == [f"{name}:{settings.data}"]


def ready(address: str, ca: str) -> bool:
    try:
        Api(address, ca=ca, timeout_s=5).get("/readyz")
    except AvowError:
        return False
    return True


def see_the_doctor_tell_what_is_wrong(addresses: str, *, token: str, ca: str) -> None:
    """Against real peers, since only they know what they say to a stranger."""

    def findings(addresses: str = addresses, *, token: str = token, ca: str = ca) -> list[Finding]:
        return check_cluster(Api(addresses, token=token, ca=ca), asked=True)

    wait_until(lambda: all(one.verdict == "ok" for one in findings()), what=lambda: str(findings()))  # all voters
    assert {finding.check for finding in findings()} >= {"cluster", "lanes", "versions"}
    for wrong, check, advice in (
        (findings(token=""), "token", "give a token with --token"),
        (findings(token="somebody's"), "token", "give a valid token with --token"),
        (findings(ca=""), "cluster", "PEM file with --ca or AVOW_CA"),
        (findings(addresses.replace("https:", "http:")), "cluster", "use https://"),
    ):
        assert {finding.check for finding in wrong} == {check}, wrong
        assert all(finding.verdict == "fail" and advice in finding.advice for finding in wrong)


def test_the_three_compose_peers_form_a_cluster_that_requires_tokens(
    containers: dict[str, Container], secrets: Path
) -> None:
    first, *others = containers.values()
    first.start()
    wait_until(lambda: "serving" in first.log.read_text(), what=first.log.read_text)
    assert not first.healthy()  # alone it is no quorum
    for container in others:
        container.start()
    addresses = ",".join(
        f"https://localhost:{one.environment['AVOW_LISTEN'].rpartition(':')[2]}" for one in containers.values()
    )
    token, ca = (secrets / "admin.token").read_text(), str(secrets / "ca.pem")
    for address, container in zip(addresses.split(","), containers.values(), strict=True):
        wait_until(partial(ready, address, ca), timeout_s=60, what=container.log.read_text)
        assert container.healthy()
    with avow.connect_blocking(addresses, token=token, ca=ca) as client:
        client.create_queue("orders")
        assert client.queue("orders").enqueue(b"paid").last_version == 1
    see_the_doctor_tell_what_is_wrong(addresses, token=token, ca=ca)
    with pytest.raises(AvowError), avow.connect_blocking(addresses, ca=ca, timeout_s=5) as stranger:
        stranger.queue("orders").enqueue(b"mine")
    assert [container.stop() for container in containers.values()] == [0, 0, 0]
