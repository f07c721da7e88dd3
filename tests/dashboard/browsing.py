"""Debian's Chromium through Playwright: one browser for a module, a fresh context with its own storage for each test.

Every page is watched: what it writes to its console as an error, or throws, fails the test that opened it, unless the
test says that it expects it (a dead peer makes the browser itself complain).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.chromium import FLAGS, NAMES, PageFailed

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 60_000
_OWN = ("--headless", "--remote-debugging-port=0")  # Playwright says these itself


@contextmanager
def browsing() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise PageFailed(f"no browser is installed; one of {', '.join(NAMES)} is needed")
    expect.set_options(timeout=PATIENCE_MS)
    flags = [flag for flag in FLAGS if flag not in _OWN]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, *, complaints: bool = False, **options: Any) -> Iterator[Page]:
    """A page at `url`. `complaints`: the browser may write errors to the console, of requests that get no answer."""
    context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", "timezone_id": "UTC", **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    console: list[str] = []
    thrown: list[str] = []
    page.on("console", lambda message: console.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: thrown.append(str(error)))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert not thrown, thrown
    assert complaints or not console, console
