"""`df.write.format("avow")`: rows as messages, each once."""

from typing import TYPE_CHECKING

from avow.moved import moved_names

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
