"""Which Java is used, and the error without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.errors import NotInstalled
from avow.spark.java import find_java, java_version


def home(folder: Path, name: str, *, release: str | None, says: str = "") -> Path:
    made = folder / name
    (made / "bin").mkdir(parents=True)
    program = made / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (made / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return made


def test_java_home_comes_first_and_the_usual_folders_last(tmp_path: Path) -> None:
    named, other = home(tmp_path, "a", release="21.0.2"), home(tmp_path / "jvm", "b", release="17.0.9")
    assert find_java({"JAVA_HOME": str(named)}, places=[str(tmp_path / "jvm")]).home == named
    assert find_java({}, places=[str(tmp_path / "jvm")]).home == other
    assert find_java({"PATH": str(named / "bin")}, places=[]).version == 21


def test_a_java_that_spark_does_not_support_is_skipped(tmp_path: Path) -> None:
    old, good = home(tmp_path / "jvm", "java-8", release="1.8.0_392"), home(tmp_path / "jvm", "java-x", release="25")
    assert java_version(old) == 8
    assert find_java({"JAVA_HOME": str(old)}, places=[str(tmp_path / "jvm")]).home == good


def test_a_java_home_without_a_release_file_is_run_for_its_version(tmp_path: Path) -> None:
    assert java_version(home(tmp_path, "asked", release=None, says='openjdk version "17.0.9" 2023-10-17')) == 17
    assert java_version(home(tmp_path, "silent", release=None)) == 0
    assert java_version(tmp_path / "nothing") == 0


def test_without_java_the_error_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = home(tmp_path, "java-8", release="1.8.0_392")
    with pytest.raises(NotInstalled, match="17, 21 or 25") as caught:
        find_java({"JAVA_HOME": str(old)}, places=[])
    assert f"Java 8 in {old}" in str(caught.value)
    with pytest.raises(NotInstalled, match="this machine has no Java"):
        find_java({}, places=[])
