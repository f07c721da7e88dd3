"""The findings of the doctor on the installation: interpreter, environment, extras, Spark and Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.cli.doctor.install import (
    Need,
    check_environment,
    check_java,
    check_libraries,
    check_python,
    check_spark,
    check_spark_home,
    fits,
    read_needs,
)


def test_a_python_that_is_too_old_fails() -> None:
    assert check_python((3, 10, 14)).verdict == "fail"
    assert check_python((3, 11, 0)).verdict == "ok"


def test_an_active_environment_other_than_that_of_the_command_is_a_warning(tmp_path: Path) -> None:
    finding = check_environment({"VIRTUAL_ENV": str(tmp_path)}, prefix="/opt/avow", outside="/usr")
    assert finding.verdict == "warn"
    assert f"{tmp_path}/bin/python -m pip install avow" in finding.advice


def test_an_inactive_or_missing_environment_is_reported() -> None:
    assert "not active" in check_environment({}, prefix="/opt/avow", outside="/usr").found
    assert "python3 -m venv" in check_environment({}, prefix="/usr", outside="/usr").advice
    active = check_environment({"VIRTUAL_ENV": "/opt/avow"}, prefix="/opt/avow", outside="/usr")
    assert (active.verdict, active.advice) == ("ok", "")


# ---------------------------------------------------------------------- extras


def test_requirements_are_read_from_pip_metadata() -> None:
    lines = ["msgspec>=0.19", "psycopg[binary]>=3.3; extra == 'spark'", 'deltalake<2,>=1.6 ; extra == "spark"']
    assert read_needs(lines) == [
        Need("msgspec", ">=0.19"),
        Need("psycopg", ">=3.3", "spark"),
        Need("deltalake", "<2,>=1.6", "spark"),
    ]
    assert {need.extra for need in read_needs()} >= {"", "server", "spark", "grpc", "redis"}


def test_a_missing_core_dependency_fails() -> None:
    base, *_ = check_libraries([Need("msgspec", ">=0.19"), Need("no-such-library", "")])
    assert (base.verdict, base.found) == ("fail", "no-such-library is not installed")


def test_a_missing_extra_names_the_commands_that_need_it_and_how_to_install_it() -> None:
    _, server, spark = check_libraries([Need("no-such-a", "", "server"), Need("no-such-b", "", "spark")])
    assert (server.verdict, server.advice) == ("warn", "pip install 'avow[server]'")
    assert "avow serve" in server.found
    assert (spark.verdict, spark.advice) == ("ok", "pip install 'avow[spark]'")
    assert "avow pipeline" in spark.found


@pytest.mark.parametrize("bounds", [">=999", "<0.1"])
def test_an_incompatible_library_version_is_a_warning(bounds: str) -> None:
    _, finding = check_libraries([Need("msgspec", bounds, "arrow")])
    assert finding.verdict == "warn"
    assert f"{bounds} is needed" in finding.found


@pytest.mark.parametrize(
    ("found", "bounds", "will_do"),
    [("4.3.0", ">=4.2", True), ("4.2", ">=4.2.0", True), ("4.1.9", ">=4.2", False), ("2.9.post0", ">=2.7,<3", True),
     ("10.0", ">=9.1", True), ("3.0.0", "<3", False), ("1.0", "", True)],
)  # fmt: skip
def test_versions_are_compared_as_numbers(found: str, bounds: str, will_do: bool) -> None:
    assert fits(found, bounds) is will_do


# ---------------------------------------------------------------------- Spark and Java


def java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


def test_without_java_it_says_what_to_install() -> None:
    (finding,) = check_java({"PATH": ""}, places=())
    assert (finding.verdict, "this machine has no Java" in finding.found) == ("warn", True)
    assert "apt-get install openjdk" in finding.advice


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    home = java(tmp_path / "old", "1.8.0_402")
    found = check_java({"PATH": "", "JAVA_HOME": str(home)}, places=())
    assert [finding.verdict for finding in found] == ["warn", "warn"]
    assert f"JAVA_HOME is {home}, which holds Java 8, which Spark does not support" in found[0].found


def test_a_java_home_without_java_is_a_warning_even_if_another_java_is_found(tmp_path: Path) -> None:
    home = java(tmp_path / "jvm" / "good", "17.0.9")
    found = check_java({"PATH": "", "JAVA_HOME": str(tmp_path / "nothing")}, places=(str(home.parent),))
    assert [finding.verdict for finding in found] == ["warn", "ok"]
    assert "which holds no Java" in found[0].found
    assert found[1].found == f"Java 17 in {home}"


def test_a_spark_home_of_another_version_or_without_spark_is_a_warning(tmp_path: Path) -> None:
    empty = check_spark_home({"SPARK_HOME": str(tmp_path)}, pyspark="4.3.0")
    assert (empty.verdict, "which holds no Spark" in empty.found) == ("warn", True)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    other = check_spark_home({"SPARK_HOME": str(tmp_path)}, pyspark="4.3.0")
    assert (other.verdict, "but the Spark in" in other.found and "is 3.5.1" in other.found) == ("warn", True)
    assert check_spark_home({"SPARK_HOME": str(tmp_path)}, pyspark="3.5.2").verdict == "ok"


def test_spark_is_checked_where_it_is_installed() -> None:
    assert {finding.check for finding in check_spark()} == {"spark", "java"}
