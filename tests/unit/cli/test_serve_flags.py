"""`avow serve` has one flag per setting, and so has the table in the documentation."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from avow.cli.main import app_of
from avow.cli.serve import serve, settings_table
from avow.errors import InvalidRequest
from avow.server.settings import DESCRIPTIONS, Settings

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_there_is_a_flag_for_each_setting_and_one_for_the_file() -> None:
    fields = [field.name for field in msgspec.structs.fields(Settings)]
    assert list(inspect.signature(serve).parameters) == ["config", *fields]
    assert len(fields) <= 26


def test_the_help_describes_each_flag() -> None:
    text = (
        CliRunner()
        .invoke(app_of(["serve"]), ["serve", "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
        .stdout
    )
    squeezed = " ".join(text.split())
    for name, description in DESCRIPTIONS.items():
        assert f"--{name.replace('_', '-')} " in squeezed
        assert description[1:] in squeezed


def test_the_documented_table_matches_the_settings() -> None:
    assert settings_table() in DOCUMENT.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--number", "none"], "setting number (flag)"),
        (["--listen", "nowhere"], "listen must be host:port"),
        (["--founders", "1=127.0.0.1:1", "--number", "2"], "number 2 is not among the founders"),
        (["--config", "/nowhere/avow.toml"], "cannot be read"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_opened(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app_of(["serve"]), ["serve", *arguments])
    assert isinstance(result.exception, InvalidRequest)
    assert complaint in str(result.exception)


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = tmp_path / "avow.toml"
    config.write_text('number = "from file"\nlisten = "also wrong"\n')
    environment = {"AVOW_NUMBER": "from environment", "AVOW_LISTEN": "127.0.0.1:0"}
    for flags, source in (([], "environment"), (["--number", "from flag"], "flag")):
        result = CliRunner().invoke(app_of(["serve"]), ["serve", "--config", str(config), *flags], env=environment)
        assert f"setting number ({source})" in str(result.exception)
