"""The PySpark that a worker imports: the compiled one, unless it differs from Spark's own."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark

from avow.spark.daemon import path_without_zip
from avow.spark.session import DAEMON

HOME = Path(pyspark.__file__).parent


def test_the_zip_is_left_out_where_the_same_pyspark_is_installed() -> None:
    zipped = str(HOME / "python" / "lib" / "pyspark.zip")
    assert path_without_zip(["before", zipped, *sys.path]) == ["before", *sys.path]


def test_the_zip_of_another_spark_stays(tmp_path: Path) -> None:
    path = [str(tmp_path / "python" / "lib" / "pyspark.zip"), *sys.path]
    assert path_without_zip(path) == path


def test_the_zip_stays_if_no_pyspark_is_installed(tmp_path: Path) -> None:
    path = [str(HOME / "python" / "lib" / "pyspark.zip"), str(tmp_path)]
    assert path_without_zip(path) == path


def test_a_path_without_a_zip_is_left_alone(tmp_path: Path) -> None:
    assert path_without_zip([str(tmp_path)]) == [str(tmp_path)]


def test_the_session_names_an_existing_module() -> None:
    assert find_spec(DAEMON) is not None
