"""Messages of dtm's gRPC service as its clients send them, built with the protobuf library from field numbers.

Independent of Avow's own reading and writing of them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"bool": 8, "int64": 3, "string": 9, "bytes": 12}
_MESSAGES = {
    "DtmTransOptions": {
        "WaitResult": (1, "bool"),
        "TimeoutToFail": (2, "int64"),
        "RetryInterval": (3, "int64"),
        "BranchHeaders": (5, "map"),
        "RequestTimeout": (6, "int64"),
        "RetryLimit": (7, "int64"),
    },
    "DtmRequest": {
        "Gid": (1, "string"),
        "TransType": (2, "string"),
        "TransOptions": (3, "DtmTransOptions"),
        "CustomedData": (4, "string"),
        "BinPayloads": (5, "repeated bytes"),
        "QueryPrepared": (6, "string"),
        "Steps": (7, "string"),
        "ReqExtra": (8, "map"),
        "RollbackReason": (9, "string"),
    },
    "DtmGidReply": {"Gid": (1, "string")},
    "DtmBranchRequest": {
        "Gid": (1, "string"),
        "TransType": (2, "string"),
        "BranchID": (3, "string"),
        "Op": (4, "string"),
        "Data": (5, "map"),
        "BusiPayload": (6, "bytes"),
    },
    "DtmTopicRequest": {"Topic": (1, "string"), "URL": (2, "string"), "Remark": (3, "string")},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="dtm.proto", package="dtmgimp", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = 3 if kind == "map" or kind.startswith("repeated") else 1
            made = message.field.add(name=field, number=number, label=label)
            bare = kind.removeprefix("repeated ")
            if kind == "map":
                entry = message.nested_type.add(name=f"{field}Entry")
                entry.options.map_entry = True
                for key, place in (("key", 1), ("value", 2)):
                    entry.field.add(name=key, number=place, label=1, type=_TYPES["string"])
                made.type, made.type_name = 11, f".dtmgimp.{name}.{field}Entry"
            elif bare in _TYPES:
                made.type = _TYPES[bare]
            else:
                made.type, made.type_name = 11, f".dtmgimp.{bare}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str, **fields: Any) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"dtmgimp.{name}"))(**fields)


def parsed(name: str, data: bytes) -> Any:
    made = message(name)
    made.ParseFromString(data)
    return made
