"""The text of entries, disk operations and answers in a transcript, and the parser of its commands.

A reader of a transcript looks for one wrong word in fifty lines, so everything has one short form:

    3:1.1 data Banana,Pineapple     the entry at position 3, appended under ballot 1.1 (pub-sub: by run 1 of peer 1)
    promised=2.3 stamped=1.1        a two-phase peer's durable promise and stamp
    done versions 3..4              an answer to a client

Batches are real ones (`avow.wire.batch`): they were encoded, stored, sent and decoded like any message.
"""

from __future__ import annotations

from collections.abc import Sequence

from avow.errors import NotEqual
from avow.ids import REPAIRING, ballot_text
from avow.limits import WRITE_ID_SIZE_BYTES
from avow.node.answers import Answer, Done, Refusal
from avow.queue.commands import StageCommand, TransactionCommand, decode
from avow.replication.effects import (
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveLossBound,
    SaveRun,
    SaveSnapshot,
    SaveState,
)
from avow.replication.membership import decode_members
from avow.wire.batch import Batch, encode_batch, pack_entry, unpack_entry
from avow.wire.messages import Entry, Fence, Fenced, Kind, Message, Refill, Refilled, describe


class TranscriptError(Exception):
    """The transcript itself is wrong: an unknown command, a missing option, a peer that does not exist."""


class Words:
    """One command line: its name, plain words in order, and `key=value` options. Each must be read once."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.name, *rest = line.split()
        self._options = dict(word.split("=", 1) for word in rest if "=" in word)
        self._plain = [word for word in rest if "=" not in word]

    def flag(self, word: str) -> bool:
        """Whether this word is there. It counts as read."""
        if word not in self._plain:
            return False
        self._plain.remove(word)
        return True

    def word(self, what: str) -> str:
        if not self._plain:
            raise TranscriptError(f"`{self.line}` lacks {what}")
        return self._plain.pop(0)

    def number(self, what: str) -> int:
        return self._integer(self.word(what))

    def maybe_number(self) -> int:
        """The next plain word as a number; 0 when there is none."""
        return self._integer(self._plain.pop(0)) if self._plain else 0

    def option(self, key: str, default: str = "") -> str:
        return self._options.pop(key, default)

    def integer(self, key: str, default: int) -> int:
        return self._integer(self._options.pop(key)) if key in self._options else default

    def required(self, key: str) -> int:
        if key not in self._options:
            raise TranscriptError(f"`{self.line}` lacks {key}=")
        return self.integer(key, 0)

    def integers(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        text = self._options.pop(key, None)
        return default if text is None else tuple(self._integer(part) for part in text.split(","))

    def values(self) -> tuple[str, ...]:
        text = self._options.pop("values", "")
        if not text:
            raise TranscriptError(f"`{self.line}` lacks values=")
        return tuple(text.split(","))

    def finish(self) -> None:
        left = [*self._plain, *(f"{key}={value}" for key, value in self._options.items())]
        if left:
            raise TranscriptError(f"`{self.line}`: {' '.join(left)} means nothing here")

    def _integer(self, text: str) -> int:
        if not text.isdigit():
            raise TranscriptError(f"`{self.line}`: {text} is not a number")
        return int(text)


def message_text(message: Message) -> str:
    """As `describe`, with a settlement's number in parts: `attempt=1.3@2` is the third one in run 1 of peer 2."""
    text = describe(message)
    if isinstance(message, Fence | Fenced | Refill | Refilled):
        number = message.attempt
        shown = f"attempt={number >> 32}.{number >> 16 & 0xFFFF}@{number & 0xFFFF}"
        text = text.replace(f"attempt={number}", shown)
    return text


def write_id_of(label: str) -> bytes:
    return label.encode().ljust(WRITE_ID_SIZE_BYTES, b".")


def batch_of(values: Sequence[str]) -> bytes:
    """The batch section of a record that holds these values."""
    return bytes(unpack_entry(bytes(encode_batch([value.encode() for value in values]))).batch)


def values_of(entry: Entry) -> list[str]:
    return [bytes(value).decode() for value in Batch(pack_entry(entry)).values()] if entry.batch else []


def entry_text(entry: Entry) -> str:
    return " ".join(part for part in (f"{entry.position}:{ballot_text(entry.origin)}", content_text(entry)) if part)


def content_text(entry: Entry) -> str:
    """Kind, command and values, without the entry's position."""
    parts = [Kind.NAMES[entry.kind]]
    if entry.kind == Kind.MEMBERS:
        members = decode_members(entry.control)
        parts.append(members_text(members.voters, members.learners))
    elif entry.control:
        command = decode(entry.kind, entry.control)
        if isinstance(command, StageCommand | TransactionCommand):
            parts.append(command.txn.decode())
        if isinstance(command, TransactionCommand) and command.reason == "deadline":
            parts.append("(deadline)")
    if entry.batch:
        parts.append(",".join(values_of(entry)))
    return " ".join(parts)


def members_text(voters: Sequence[int], learners: Sequence[int]) -> str:
    return numbers_text(voters) + (f" learners {numbers_text(learners)}" if learners else "")


def numbers_text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "nobody"


def log_text(entries: Sequence[Entry], *, synced_to: int) -> str:
    """Entries beyond `synced_to` have a star: they are in memory and in the disk's queue, and not stored yet."""
    return "  ".join(entry_text(entry) + ("*" if entry.position > synced_to else "") for entry in entries) or "empty"


def persist_text(operation: Persist, *, lane: str = "") -> str:
    """What one disk operation made durable; `lane` is a prefix where a peer has several."""
    match operation:
        case SaveState(_, promised, stamped):
            return f"promised={ballot_text(promised)} stamped={stamp_text(stamped)}"
        case SaveEntries(_, entries):
            return lane + "  ".join(map(entry_text, entries))
        case SaveCut(_, end):
            return f"{lane}cut to {end}"
        case SaveFence(_, end):
            return f"{lane}fence" if end < 0 else f"{lane}end {end}"
        case SaveRun(incarnation):
            return f"run {incarnation}"
        case SaveSnapshot(_, snapshot):
            return f"{lane}snapshot at {snapshot.position}"
        case SaveLossBound(below):
            return f"lanes from {below} on are younger than the loss"
        case _:
            return f"{lane}trim to {operation.upto}"


def stamp_text(stamped: int) -> str:
    return "repairing" if stamped == REPAIRING else ballot_text(stamped)


def answer_text(answer: Answer) -> str:
    if isinstance(answer, Done):
        first, last = answer.first_version, answer.last_version
        return "done" if last < first or not last else f"done versions {first}..{last}"
    if isinstance(answer, Refusal):
        return f"refused {answer.code}" + (f" cursor={answer.cursor}" if answer.code == NotEqual.code else "")
    return "unknown"
