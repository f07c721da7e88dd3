"""The barrier's imports: it runs inside users' services, with the libraries that they have."""

from __future__ import annotations

import subprocess
import sys


def test_a_service_needs_only_the_libraries_that_it_uses() -> None:
    """In a separate process: the barrier on sqlite3 imports the standard library and the errors."""
    script = (
        "import sys, sqlite3\n"
        "from avow.barrier import schema, sql, web\n"
        "connection = sqlite3.connect(':memory:')\n"
        "sql.create_table(connection)\n"
        "assert sql.check_back(connection, 'gid') == 'FAILURE'\n"
        "foreign = {'sqlalchemy', 'psycopg', 'pymysql', 'redis', 'pymongo', 'starlette', 'flask', 'django', 'msgspec'}"
        " & set(sys.modules)\n"
        "own = {name for name in sys.modules if name.startswith('avow.') and not name.startswith('avow.barrier')}\n"
        "assert (foreign, own) == (set(), {'avow.errors'}), (foreign, own)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
