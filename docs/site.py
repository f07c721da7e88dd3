"""A hook of mkdocs: what the pages link to outside of this folder is named, not linked.

In the repository a link to `../examples/shop` leads somewhere. The site holds only what is in docs/, so there the same
link becomes the path, to be looked for in the repository.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\.?/[^)#\s]+|[\w./-]+)(?P<anchor>#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        inside = posixpath.normpath(posixpath.join(folder, link["target"]))
        if not inside.startswith("../"):
            return link[0]
        path = inside.removeprefix("../")
        return f"`{path}`" if link["text"] == path else f"{link['text']} (`{path}`)"

    return _LINK.sub(shown, markdown)
