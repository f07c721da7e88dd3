"""Topics: names that stand for several branches. `topic://name` is expanded when a pledge is first seen.

Read from the store each time, so a subscription counts from the moment it is answered, on every coordinator, without a
restart. A pledge keeps the subscribers it was expanded to: who subscribes later does not get what was pledged before,
and who leaves still gets it.

Changes are compare-and-set, tried again when somebody was faster. A topic without subscribers does not exist: pledging
to it is refused, rather than delivered to nobody.
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
        """Raises AlreadyExists if that URL subscribes already."""
        if not name or len(name.encode()) > TOPIC_NAME_BYTES_MAX:
            raise InvalidRequest(f"a topic's name has 1 to {TOPIC_NAME_BYTES_MAX} bytes, not {len(name)}")
        if not url or url.startswith(SCHEME):
            raise InvalidRequest(f"a topic's subscriber is a URL that can be called, not {url!r}")
        self._check(url)

        def added(subscribers: Subscribers) -> Subscribers:
            if any(known == url for known, _ in subscribers):
                raise AlreadyExists(f"{url} subscribes to {name} already; nothing was changed")
            if len(subscribers) >= TOPIC_SUBSCRIBERS_MAX:
                raise TooMany(f"topic {name} has {TOPIC_SUBSCRIBERS_MAX} subscribers already; nothing was changed")
            return (*subscribers, (url, remark))

        return await self._change(name, added)

    async def unsubscribe(self, name: str, url: str) -> Topic:
        """The topic as it is now, perhaps without subscribers. Raises UnknownTopic, UnknownSubscriber."""

        def removed(subscribers: Subscribers) -> Subscribers:
            if not subscribers:
                raise UnknownTopic(f"there is no topic {name}; nothing was changed")
            after = tuple(item for item in subscribers if item[0] != url)
            if len(after) == len(subscribers):
                raise UnknownSubscriber(f"{url} does not subscribe to {name}; nothing was changed")
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
        raise TooMany(f"topic {name} was changed by others {_ATTEMPTS_MAX} times meanwhile; nothing was changed")
