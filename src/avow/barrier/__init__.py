"""The barrier ties a pledge to a service's own database transaction. It runs inside the service.

    avow.barrier.sql          DB-API connections: sqlite3, psycopg, PyMySQL
    avow.barrier.sqlalchemy   engines, connections and sessions, also asyncio's
    avow.barrier.redis        Lua scripts, also asyncio's
    avow.barrier.mongo        pymongo, on a replica set
    avow.barrier.web          the checkback's route for Starlette, FastAPI, Flask, Django
    avow.barrier.schema       the table as a migration

It does not depend on peers or clients: a coordinator, Avow's or dtm's, calls the service's checkback and branches, and
nothing else. sql_rules.py has the rules; key.py says how long rows must be kept.
"""

from avow.barrier.key import Question, Verdict

__all__ = ["Question", "Verdict"]
