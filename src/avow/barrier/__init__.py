"""The barrier: how a service ties a pledge to its own transaction. It runs inside other people's services.

    avow.barrier.sql          DB-API connections: sqlite3, psycopg, PyMySQL
    avow.barrier.sqlalchemy   engines, connections and sessions, also asyncio's
    avow.barrier.redis        Lua scripts, also asyncio's
    avow.barrier.mongo        pymongo, on a replica set
    avow.barrier.web          the checkback's route for Starlette, FastAPI, Flask, Django
    avow.barrier.schema       the table as a migration

Nothing here knows a peer or a client: a coordinator, ours or dtm's, meets it at two addresses only, the checkback and
the branches. The rules stand in rows.py; key.py says what must be kept for how long.
"""

from avow.barrier.key import Question, Verdict

__all__ = ["Question", "Verdict"]
