"""The doctor where it opens sockets: ports, and a cluster that does not answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from typer.testing import CliRunner

from avow.cli.doctor.network import check_ports
from avow.cli.main import app_of
from avow.server.settings import Settings


def test_a_free_port_passes_and_a_used_one_is_reported_with_its_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings(listen=f"127.0.0.1:{port}", peer_listen="127.0.0.1:0")
        listen, peer_listen = check_ports(settings)
    assert f"127.0.0.1:{port} is in use by process" in listen.found
    assert (peer_listen.verdict, "free port" in peer_listen.found) == ("ok", True)


def test_an_address_of_another_machine_fails() -> None:
    listen, _ = check_ports(Settings(listen="203.0.113.7:7400", peer_listen="127.0.0.1:0"))
    assert (listen.verdict, listen.advice) == ("fail", "use an address of this machine")


def test_the_command_exits_with_1_on_a_failure_and_json_agrees(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    arguments = ["doctor", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]
    result = CliRunner().invoke(app_of(["doctor"]), arguments)
    assert result.exit_code == 1
    assert "fail  folder" in result.stdout
    found = json.loads(CliRunner().invoke(app_of(["doctor"]), [*arguments, "--json"]).stdout)
    assert found["healthy"] is False
    assert {"check", "verdict", "found", "advice"} == set(found["findings"][0])


def test_a_cluster_that_was_named_and_does_not_answer_fails(tmp_path: Path) -> None:
    arguments = ["doctor", "--data", str(tmp_path), "--api", "http://127.0.0.1:1", "--json"]
    result = CliRunner().invoke(app_of(["doctor"]), arguments)
    found = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert (result.exit_code, found["cluster"]["verdict"]) == (1, "fail")
