"""Commands that other packages add through entry points: they load, and a broken one does not stop the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from avow.cli.main import PLUGINS, app_of
from avow.errors import InvalidRequest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of another package that is installed."""
    folder = tmp_path / "neighbour-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: neighbour\nVersion: 1.0\n")
    (tmp_path / "neighbour.py").write_text('def greet() -> None:\n    print("hello")\n')
    monkeypatch.syspath_prepend(tmp_path)
    return folder / "entry_points.txt"


def test_a_command_of_another_package_runs_and_is_listed(package: Path) -> None:
    package.write_text(f"[{PLUGINS}]\ngreet = neighbour:greet\n")
    assert CliRunner().invoke(app_of(["greet"]), ["greet"]).output == "hello\n"
    assert "greet" in CliRunner().invoke(app_of(), ["--help"]).output


def test_a_built_in_command_cannot_be_replaced(package: Path) -> None:
    package.write_text(f"[{PLUGINS}]\nstatus = neighbour:greet\n")
    assert "hello" not in CliRunner().invoke(app_of(["status"]), ["status", "--help"]).output


@pytest.mark.parametrize(
    ("entry", "name", "reason"),
    [
        ("simulate = neighbour:greet", "simulate", "several packages provide `avow simulate`"),
        ("greet = nowhere:greet", "greet", "cannot be loaded from nowhere:greet"),
        ("greet = neighbour:missing", "greet", "cannot be loaded from neighbour:missing"),
    ],
)
def test_a_command_that_cannot_be_used_is_refused_and_the_others_work(
    package: Path, entry: str, name: str, reason: str
) -> None:
    package.write_text(f"[{PLUGINS}]\n{entry}\n")
    listed = CliRunner().invoke(app_of(), ["--help"], terminal_width=200)
    assert listed.exit_code == 0
    assert "Not available" in listed.output
    with pytest.raises(InvalidRequest, match=reason):
        CliRunner().invoke(app_of([name]), [name, "--seeds", "1"], catch_exceptions=False)
