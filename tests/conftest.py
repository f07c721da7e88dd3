"""Shared by all tests: property tests are judged by what they find, not by how long a loaded machine takes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("avow", deadline=None, print_blob=True)
settings.load_profile("avow")
