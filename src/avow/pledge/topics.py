"""Topics: a name for several branches. `topic://name` is expanded at the first request with a gid.

Topics are read from the store each time, so a subscription is effective on every coordinator as soon as it is answered.
A pledge keeps the subscribers to which it was expanded: a later subscriber does not get it, and one that unsubscribes
still does.

Changes are compare-and-set, retried after a conflict. A topic without subscribers does not exist: a pledge to it is
refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from avow.errors import AlreadyExists, InvalidRequest, TooMany, UnknownSubscriber, UnknownTopic
from avow.limits import TOPIC_NAME_BYTES_MAX, TOPIC_SUBSCRIBERS_MAX
from avow.pledge.store import PledgeStore, Topic

SCHEME: Final = "topic://"
_ATTEMPTS_MAX: Final = 64

Subscribers: TypeAlias = tuple[tuple[str, str], ...]


class Topics:
    """`check` raises InvalidRequest for a URL that cannot be called."""

    def __init__(self, store: PledgeStore, *, now_ms: Callable[[], int], check: Callable[[str], None]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._check = check

    async def subscribe(self, name: str, url: str, *, remark: str = "") -> Topic:
        """Raises AlreadyExists if the URL is subscribed already."""
        if not name or len(name.encode()) > TOPIC_NAME_BYTES_MAX:
            raise InvalidRequest(
                f"a topic's name must have 1 to {TOPIC_NAME_BYTES_MAX} bytes, not {len(name)}; nothing was changed"
            )
        if not url or url.startswith(SCHEME):
            raise InvalidRequest(
                f"a topic's subscriber must be the URL of a service or queue, not {url!r}; nothing was changed"
            )
        self._check(url)

        def added(subscribers: Subscribers) -> Subscribers:
            if any(known == url for known, _ in subscribers):
                raise AlreadyExists(f"{url} is already subscribed to topic {name}; nothing was changed")
            if len(subscribers) >= TOPIC_SUBSCRIBERS_MAX:
                raise TooMany(f"topic {name} already has {TOPIC_SUBSCRIBERS_MAX} subscribers; nothing was changed")
            return (*subscribers, (url, remark))

        return await self._change(name, added)

    async def unsubscribe(self, name: str, url: str) -> Topic:
        """Returns the changed topic, which may have no subscribers. Raises UnknownTopic, UnknownSubscriber."""

        def removed(subscribers: Subscribers) -> Subscribers:
            if not subscribers:
                raise UnknownTopic(f"there is no topic {name}; nothing was changed")
            after = tuple(item for item in subscribers if item[0] != url)
            if len(after) == len(subscribers):
                raise UnknownSubscriber(f"{url} is not subscribed to topic {name}; nothing was changed")
            return after

        return await self._change(name, removed)

    async def delete(self, name: str) -> None:
        """Raises UnknownTopic."""

        def emptied(subscribers: Subscribers) -> Subscribers:
            if not subscribers:
                raise UnknownTopic(f"there is no topic {name}; nothing was changed")
            return ()

        await self._change(name, emptied)

    async def load(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        topic = await self._store.load_topic(name) if name else None
        if topic is None or not topic.subscribers:
            raise UnknownTopic(f"topic {name!r} has no subscribers; nothing was changed. Subscribe a URL first")
        return topic

    async def list(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        return await self._store.list_topics(position=position, limit=limit)

    async def _change(self, name: str, change: Callable[[Subscribers], Subscribers]) -> Topic:
        for _ in range(_ATTEMPTS_MAX):
            known = await self._store.load_topic(name)
            subscribers = change(() if known is None else known.subscribers)
            now_ms = self._now_ms()
            if await self._store.swap_topic(known, subscribers, name=name, now_ms=now_ms):
                version, created_ms = (1, now_ms) if known is None else (known.version + 1, known.created_ms)
                return Topic(name, subscribers, version, created_ms, now_ms)
            await asyncio.sleep(0)
        raise TooMany(
            f"topic {name} was changed concurrently {_ATTEMPTS_MAX} times; this request changed nothing. Try again"
        )
