"""Protocols as texts that people read and tests replay."""
