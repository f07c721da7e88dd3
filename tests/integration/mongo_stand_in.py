"""The part of a MongoDB replica set that the barrier uses, for the real driver over its own protocol (OP_MSG).

Not MongoDB: it holds documents with one unique key, transactions that see their own inserts, and the write conflict
(112) that MongoDB documents for a second transaction at the same key. It shows that the commands the driver sends are
those that are meant, in the order and transactions that are meant. With AVOW_MONGODB, tests use the server it names.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import bson

KEY = ("gid", "branch_id", "op", "barrier_id")
_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
_OP_QUERY = 2004
_OP_REPLY = 1

Document = dict[str, Any]
Transaction = tuple[bytes, int]


class MongoStandIn:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.rows: dict[tuple[str, ...], Document] = {}
        self.pending: dict[Transaction, dict[tuple[str, ...], Document]] = {}
        self.commands: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        port = self._listener.getsockname()[1]
        return f"mongodb://127.0.0.1:{port}/?replicaSet=rs&retryWrites=false&serverSelectionTimeoutMS=5000"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(one)
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with one, one.makefile("rb") as stream:
            while header := stream.read(_HEADER.size):
                size, request_id, _, code = _HEADER.unpack(header)
                body = stream.read(size - _HEADER.size)
                command = _of_message(body) if code == _OP_MSG else _of_query(body)
                with self._lock:
                    reply = bson.encode({"ok": 1, **self._answer(command)})
                if code == _OP_MSG:
                    answer, kind = struct.pack("<ib", 0, 0) + reply, _OP_MSG
                else:
                    answer, kind = struct.pack("<iqii", 8, 0, 0, 1) + reply, _OP_REPLY
                one.sendall(_HEADER.pack(_HEADER.size + len(answer), 0, request_id, kind) + answer)

    def _answer(self, command: Document) -> Document:
        name = next(iter(command))
        transaction = _transaction_of(command)
        if name not in ("hello", "ismaster", "isMaster", "endSessions"):
            self.commands.append(f"{name}{' in transaction' if transaction else ''}")
        if transaction and command.get("startTransaction"):
            self.pending[transaction] = {}
        if transaction and transaction not in self.pending:
            return {"ok": 0, "code": 251, "codeName": "NoSuchTransaction", "errmsg": "no such transaction"}
        handler = getattr(self, f"_{name.lower()}", None)
        if handler is None:
            return {"ok": 0, "code": 59, "errmsg": f"no such command: {name}"}
        found: Document = handler(command, transaction)
        return found

    def _hello(self, *_: object) -> Document:
        me = f"127.0.0.1:{self._listener.getsockname()[1]}"
        return {
            "ismaster": True,
            "isWritablePrimary": True,
            "setName": "rs",
            "hosts": [me],
            "me": me,
            "primary": me,
            "setVersion": 1,
            "maxWireVersion": 21,
            "minWireVersion": 0,
            "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48 << 20,
            "maxWriteBatchSize": 1000,
            "logicalSessionTimeoutMinutes": 30,
        }

    _ismaster = _hello

    def _endsessions(self, *_: object) -> Document:
        return {}

    def _createindexes(self, command: Document, _: object) -> Document:
        assert [(index["key"].keys() == set(KEY), index["unique"]) for index in command["indexes"]] == [(True, True)]
        return {}

    def _find(self, command: Document, transaction: Transaction | None) -> Document:
        key = tuple(command["filter"][name] for name in KEY)
        found = self.pending.get(transaction, {}).get(key) if transaction else None
        found = found or self.rows.get(key)
        return {"cursor": {"id": bson.Int64(0), "ns": "dtm_barrier.barrier", "firstBatch": [found] if found else []}}

    def _insert(self, command: Document, transaction: Transaction | None) -> Document:
        (document,) = command["documents"]
        key = tuple(document[name] for name in KEY)
        if key in self.rows:
            self.pending.pop(transaction, None)  # type: ignore[arg-type]
            return {"n": 0, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "E11000 duplicate key"}]}
        if any(key in held for owner, held in self.pending.items() if owner != transaction):
            self.pending.pop(transaction, None)  # type: ignore[arg-type]
            labels = ["TransientTransactionError"]
            return {"ok": 0, "code": 112, "codeName": "WriteConflict", "errmsg": "WriteConflict", "errorLabels": labels}
        assert transaction, "an insert outside of a transaction would wait for the other one"
        self.pending[transaction][key] = document
        return {"n": 1}

    def _committransaction(self, command: Document, transaction: Transaction) -> Document:
        assert command["writeConcern"]["w"] == "majority"
        self.rows.update(self.pending.pop(transaction))
        return {}

    def _aborttransaction(self, _: object, transaction: Transaction) -> Document:
        self.pending.pop(transaction, None)
        return {}


def _transaction_of(command: Document) -> Transaction | None:
    if "autocommit" not in command:
        return None
    return bytes(command["lsid"]["id"]), int(command["txnNumber"])


def _of_query(body: bytes) -> Document:
    """flags, collection name, skip, return, document"""
    name_end = body.index(b"\0", 4)
    return bson.decode(body[name_end + 9 :])


def _of_message(body: bytes) -> Document:
    """flags; then sections: 0 and the command, or 1, size, name and documents"""
    at, command, lists = 4, {}, {}
    while at < len(body):
        kind, at = body[at], at + 1
        (size,) = struct.unpack_from("<i", body, at)
        if kind == 0:
            command = bson.decode(body[at : at + size])
        else:
            name_end = body.index(b"\0", at + 4)
            lists[body[at + 4 : name_end].decode()] = bson.decode_all(body[name_end + 1 : at + size])
        at += size
    return {**command, **lists}
