"""The command line against a cluster that asks for tokens and speaks TLS."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from avow.testing.cluster import LocalCluster

ADMIN, READER = "admin's secret", "reader's secret"


def _files(folder: Path) -> dict[str, str]:
    """Settings for TLS and tokens; the authority is in `ca.pem`."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    admin, reader = (hashlib.sha256(secret.encode()).hexdigest() for secret in (ADMIN, READER))
    (folder / "tokens.toml").write_text(
        f'[[token]]\nname = "admin"\nsha256 = "{admin}"\nadmin = true\n'
        f'[[token]]\nname = "reader"\nsha256 = "{reader}"\nrights = {{ "*" = ["read"] }}\n'
    )
    names = {"tokens": "tokens.toml", "tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}
    return {name: str(folder / file) for name, file in names.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = _files(tmp_path_factory.mktemp("secrets"))
    with LocalCluster(3, settings=settings, token=ADMIN, ca=settings["tls_ca"]) as running:
        yield running


def avow(cluster: LocalCluster, *arguments: str, token: str, ca: str | None = None) -> subprocess.CompletedProcess[str]:
    known = {"AVOW_API": cluster.addresses, "AVOW_TOKEN": token, "AVOW_CA": cluster.ca if ca is None else ca}
    command = [sys.executable, "-m", "avow.cli", *arguments]
    return subprocess.run(command, env={**os.environ, **known}, capture_output=True, text=True, timeout=60, check=False)


def test_with_a_token_and_the_authority_everything_works(cluster: LocalCluster) -> None:
    assert cluster.api(1).startswith("https://")
    for arguments in (("queue", "create", "orders"), ("enqueue", "orders", "a", "b"), ("status",)):
        run = avow(cluster, *arguments, token=ADMIN)
        assert run.returncode == 0, run.stderr
    read = avow(cluster, "read", "orders", "--values-only", token=READER)
    assert read.stdout == "a\nb\n", read.stderr
    status = json.loads(avow(cluster, "status", "--json", token=ADMIN).stdout)
    assert [peer["up"] for peer in status["peers"]] == [True, True, True]


def test_without_the_right_it_is_refused(cluster: LocalCluster) -> None:
    run = avow(cluster, "queue", "create", "mine", token=READER)
    assert (run.returncode, run.stderr.startswith("avow: FORBIDDEN: ")) == (1, True), run.stderr


@pytest.mark.parametrize("token", ["", "somebody's secret"])
def test_without_a_known_token_nothing_is_revealed(cluster: LocalCluster, token: str) -> None:
    run = avow(cluster, "queue", "list", token=token)
    assert (run.returncode, run.stderr.startswith("avow: NOT_AUTHENTICATED: ")) == (1, True), run.stderr


def test_a_certificate_of_an_unknown_authority_is_not_trusted(cluster: LocalCluster) -> None:
    run = avow(cluster, "queue", "list", token=ADMIN, ca="")
    assert run.returncode == 4
    assert "certificate verify failed" in run.stderr.lower()


def test_a_peer_joins_over_tls_with_the_cluster_s_token(cluster: LocalCluster) -> None:
    assert cluster.add() == 4
