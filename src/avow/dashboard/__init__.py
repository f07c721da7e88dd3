"""The dashboard: pages that show a cluster and let somebody act on it, as files that every peer hands out.

It is a client like any other. The pages hold no data and no secret; what they show they ask for by the public API, with
the token of whoever looks, so nothing can be seen or done here that could not be seen or done with `avow` or `curl`.

There is no build: `static/` is what a browser gets, ES modules without dependencies, named after what they show.

    app.js                          which page is shown, how fresh it is, who is asked
    api.js, poll.js, live.js        asking peers, one after the other; again and again; messages as they come
    dom.js, format.js, dialog.js    elements from data, and the least change to what is shown; numbers; rights
    cluster.js, map.js, queues.js, queue.js, queue_forms.js, life.js, sequence.js, pledges.js, pledge.js, timeline.js,
    pipelines.js, plot.js           the pages, and what they draw
"""

from __future__ import annotations

from importlib import resources
from typing import Final

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def files() -> dict[str, tuple[str, bytes]]:
    """What a server must hand out, by name: its content type and its bytes."""
    found = {}
    for file in (resources.files(__name__) / "static").iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            found[file.name] = (content_type, file.read_bytes())
    return found
