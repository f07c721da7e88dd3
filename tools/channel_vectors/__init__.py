"""Conformance vectors of the channel protocol: the behaviour of an end at each step, as JSON, for any language.

A vector has one or two ends with their options, and steps in order. A step is one call of one end; `expect` lists the
events and packets that it produces and the values of its statistics that change.

    {"end": "a", "do": "commit", "expect": {"gives": 1, "packets": ["03010..."], "state": {"commits": 1}}}

Steps are self-contained: a packet that one end produced is repeated where the other receives it. Bytes are hex, or, if
they repeat, a list of [hex, count]; long ones that are only compared are given as a size and a SHA-256. The free text
of an END (IMPOSSIBLE, PROTOCOL, CAP_EXCEEDED) is for people: it is removed before packets are compared, and null in
events.

The Python core writes the files: `python -m tools.channel_vectors --write`. They show whether another core behaves in
the same way, and whether this one still behaves as before.
"""
