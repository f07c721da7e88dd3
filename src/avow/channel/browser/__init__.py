"""The channel for browsers: one ES module without dependencies or a build, its types, and sockets over WebChannel.

`avow-channel.js` is the core of `avow.channel.protocol` once more, and around it what a page needs: a WebSocket that is
replaced when it is lost. Both cores are held to the same vectors (`avow.testing.channel_vectors`), so the rules are
explained there and in docs/channel.md, and not a second time: the module may have 5 KB as it is sent, gzipped, with its
comments, and is written for that. What is for users of it is in `avow-channel.d.ts`, which costs a page nothing.

How it is written: `Core` and `connect` are functions whose variables are the state, since `this.` and getters would
cost 400 bytes; events are arrays; a frame is read and heard in one place; an error while hearing is the other end's.
What waits in `connect` is a condition that is looked at again in each turn; hooks for messages and commits are called
one after the other by a chain of promises; listeners are removed by an AbortController, handed over whole because
its `signal` is the option that counts. There are no semicolons because there was no room for them.
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
    """What a server must hand out, by name: its content type and its bytes."""
    folder = resources.files(__name__)
    return {name: (content_type, (folder / name).read_bytes()) for name, content_type in _TYPES.items()}
