"""The channel protocol without IO: frames, state tables, each direction, and the core of one end."""

from typing import TYPE_CHECKING

from avow.moved import moved_names

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
