"""The dashboard: pages that show and manage a cluster, as static files that every peer serves.

It is an ordinary client. The pages contain no data and no secret. They use the public API with the user's token, so
they can show and do only what `avow` or `curl` could with the same token.

There is no build step: `static/` is served as it is. It holds ES modules without dependencies, named after what they
show.

    app.js                          routing, freshness of the data, the peer in use
    api.js, poll.js, live.js        requests with failover between peers; polling; streaming of messages
    dom.js, format.js, dialog.js    elements from data and minimal DOM updates; number formats; confirmation and rights
    cluster.js, map.js, queues.js, queue.js, queue_forms.js, life.js, sequence.js, pledges.js, pledge.js, timeline.js,
    pipelines.js, plot.js           the pages and their drawings
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
    """The files to serve: content type and bytes by name."""
    found = {}
    for file in (resources.files(__name__) / "static").iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            found[file.name] = (content_type, file.read_bytes())
    return found
