"""Measured figures. Run all of them with `make bench`."""
