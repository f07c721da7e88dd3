"""Transports of a channel's packets: WebSockets, and WebChannel sessions over plain HTTP."""
