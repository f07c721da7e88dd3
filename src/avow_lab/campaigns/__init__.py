"""Faults in real processes under load, and checks of every answer that clients got."""
