"""Every Spark of these tests starts with a third of the work (see class_archive.py).

Programs that tests start inherit it; what Avow itself sets for Spark stays as it is. `make` has made the archive;
without it the tests only take longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from class_archive import SHORT_LIFE, options

os.environ.setdefault("SPARK_SUBMIT_OPTS", options(Path(sys.prefix) / "spark.jsa"))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIFE)
