"""The channel for browsers: one ES module without dependencies or a build step, its types, and sockets over WebChannel.

`avow-channel.js` is a second implementation of `avow.channel.protocol.core`, plus a WebSocket that is replaced when it
is lost. Both cores must pass the same vectors (`tools.channel_vectors`). The protocol is documented there and in
docs/channel.md, not in the module: gzipped, with its comments, it must stay under 5 KB, and it is written for that. The
documentation for its users is in `avow-channel.d.ts`, which pages do not load.

How it saves space: `Core` and `connect` are functions whose variables are the state, since `this.` and getters would
cost 400 bytes; events are arrays; a frame is parsed and applied in one place; an error while parsing counts as a
violation by the other end. A wait in `connect` is a condition that is checked in each turn; hooks for messages and
commits are called one after the other by a chain of promises; listeners are removed by an AbortController, passed as
the options object because its `signal` is the option that is needed. Semicolons are omitted for size.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

_TYPES: Final = {
    "avow-channel.js": "text/javascript; charset=utf-8",
    "avow-channel.d.ts": "text/plain; charset=utf-8",
    "webchannel-socket.js": "text/javascript; charset=utf-8",
}


def files() -> dict[str, tuple[str, bytes]]:
    """The files that a server must serve, by name: content type and bytes."""
    folder = resources.files(__name__)
    return {name: (content_type, (folder / name).read_bytes()) for name, content_type in _TYPES.items()}
