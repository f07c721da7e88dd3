"""Conformance vectors of the channel's core: what an end does at each step, as JSON, for cores in any language.

A vector has one or two ends with their options, and steps in order. A step is one call of one end, after which its
events and packets are taken; `expect` says what they were and which figures of its statistics have changed.

    {"end": "a", "do": "commit", "expect": {"gives": 1, "packets": ["03010..."], "state": {"commits": 1}}}

Steps need nothing but themselves: a packet that one end gave is written out where the other receives it. Bytes are hex,
or, where they repeat, a list of [hex, how often]; long ones that are only compared are a size and a SHA-256. What a
text in an END says in an end's own words (IMPOSSIBLE, PROTOCOL, CAP_EXCEEDED) is for people: it is taken out before
packets are compared, and null among events.

The files are written by the Python core: `python -m avow.testing.channel_vectors --write`. So they show whether another
core does the same, and whether this one still does what it did.
"""
