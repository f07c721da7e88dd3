"""Whole clusters of nodes in one thread, driven by a seed: world, fault schedule, clients, verdict."""
