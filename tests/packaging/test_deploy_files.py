"""The files of deploy/: each is checked by the program that reads it, and every setting by the peer's own loader."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.packaging.locking import DEPLOY, ROOT, lock

from avow.server.access import check_exposure, load_tokens
from avow.server.settings import DESCRIPTIONS, ENVIRONMENT_PREFIX, Settings, founders_of, load

MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OTHERS = {"AVOW_HOST", "AVOW_API", "AVOW_CA", "AVOW_TOKEN"}  # of compose.yaml itself, of clients


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents() if document["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "secrets"
    made = ("localhost", "127.0.0.1", "*.peers.avow.svc")
    subprocess.run([DEPLOY / "secrets.sh", folder, *made], check=True, capture_output=True, timeout=60)
    return folder


# ---------------------------------------------------------------------- names


def test_every_setting_that_a_file_names_exists() -> None:
    settings = {ENVIRONMENT_PREFIX + name.upper() for name in DESCRIPTIONS}
    for path in [*DEPLOY.glob("*"), *MANIFESTS, ROOT / "docs" / "deploy.md"]:
        if path.is_file():
            assert set(re.findall(r"AVOW_[A-Z_]+", path.read_text())) <= settings | OTHERS, path


# ---------------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_follows_its_schema(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_environment_of_the_stateful_set_starts_three_founders(secrets: Path) -> None:
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "secrets"]
    for ordinal in range(of_kind("StatefulSet")["spec"]["replicas"]):
        given = {one["name"]: one.get("value", f"avow-{ordinal}") for one in container["env"]}
        seen = {name: value.replace("$(POD_NAME)", given["POD_NAME"]) for name, value in given.items()}
        here = {name: value.replace(mount["mountPath"], str(secrets)) for name, value in seen.items()}
        flags = subprocess.run(
            ["sh", "-c", container["command"][2].replace("exec avow serve", "echo")],
            env={**seen, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        settings = load({flags[0].removeprefix("--"): flags[1]}, environment=here)
        check_exposure(settings)
        assert founders_of(settings)[ordinal + 1] == f"{settings.advertise}:7500"
    assert mount["mountPath"] == "/etc/avow"


def test_pods_are_discoverable_spread_probed_and_protected_from_eviction() -> None:
    stateful = of_kind("StatefulSet")
    pod = stateful["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    services = {one["metadata"]["name"]: one["spec"] for one in documents() if one["kind"] == "Service"}
    headless = services[stateful["spec"]["serviceName"]]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    selectors = [service["selector"] for service in services.values()]
    assert [*selectors, of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]] == [labels] * 3
    (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] in {mount["name"] for mount in container["volumeMounts"]}


def test_the_example_secret_is_well_formed_and_grants_no_access(tmp_path: Path) -> None:
    data = of_kind("Secret")["stringData"]
    path = tmp_path / "tokens.toml"
    path.write_text(data["tokens.toml"])
    assert load_tokens(Settings(tokens=str(path))).needed
    assert set(re.findall(r'sha256 = "(.)\1{63}"', data["tokens.toml"])) == {"0"}
    assert not any("PRIVATE KEY" in value for value in data.values())


# ---------------------------------------------------------------------- systemd


def unit() -> dict[str, list[tuple[str, str]]]:
    """Sections of (key, value): keys are repeated in it, and written with capitals."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (DEPLOY / "avow.service").read_text().splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[list(found)[-1]].append((key, value))
    return found


def test_the_systemd_unit_starts_a_peer_with_its_settings(secrets: Path) -> None:
    service = unit()["Service"]
    environment = dict(value.split("=", 1) for key, value in service if key == "Environment")
    credentials = {value.split(":")[0] for key, value in service if key == "LoadCredential"}
    used = {value.removeprefix("%d/") for value in environment.values() if value.startswith("%d/")}
    assert used == credentials
    here = {name: value.replace("%d", str(secrets)).replace("%S", "/var/lib") for name, value in environment.items()}
    settings = load({}, environment=here, config=DEPLOY / "avow.toml")
    check_exposure(settings)
    assert settings.data == f"/var/lib/{dict(service)['StateDirectory']}"
    assert dict(service)["KillSignal"] == "SIGTERM"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """By systemd itself where it is installed; its form by Python's reader everywhere."""
    text = (DEPLOY / "avow.service").read_text()
    assert RawConfigParser(strict=False).read(DEPLOY / "avow.service")
    verifier = shutil.which("systemd-analyze")
    if verifier is not None:
        path = tmp_path / "avow.service"
        path.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text))
        done = subprocess.run([verifier, "verify", path], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------- the image


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_everything_that_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words]
    sources = {source for words in copies for source in words}
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_runs_unprivileged_with_a_volume_and_a_healthcheck() -> None:
    directives = dict(instructions())
    assert directives["USER"] == "10001:10001"
    assert directives["VOLUME"] == "/var/lib/avow"
    assert "healthcheck.py" in directives["HEALTHCHECK"]
    assert (directives["ENTRYPOINT"], directives["CMD"]) == ('["avow"]', '["serve"]')
    given = dict(re.findall(r"(AVOW_\w+)=(\S+)", directives["ENV"]))
    settings = load({}, environment=given)
    assert settings.data == directives["VOLUME"]
    assert not {"AVOW_TOKENS", "AVOW_TLS_KEY"} & given.keys()


@pytest.mark.parametrize("file", sorted(lock.WANTED))
def test_the_lock_file_matches_the_pinned_test_requirements(file: str) -> None:
    assert (DEPLOY / file).read_text() == lock.lock(lock.WANTED[file])


# ---------------------------------------------------------------------- secrets


def test_secrets_are_created_once_and_the_authority_key_stays_private(secrets: Path) -> None:
    assert (secrets.stat().st_mode & 0o777, (secrets / "ca.key").stat().st_mode & 0o777) == (0o700, 0o600)
    before = (secrets / "ca.pem").read_bytes()
    again = subprocess.run(
        [DEPLOY / "secrets.sh", secrets, "localhost"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (again.returncode, "nothing was changed" in again.stderr) == (1, True)
    assert (secrets / "ca.pem").read_bytes() == before
