"""Deliberate mistakes, each a role object in the place of a shipped one, and the hunt that shows they are caught."""
