"""A page in a real browser: headless Chromium, a fresh profile, a bounded time, and what the page found out.

    async with Chromium() as browser:
        found = await browser.run("http://127.0.0.1:1234/page.html", timeout_s=20)

The page does what it does and, when it is finished, sets `globalThis.result` to a JSON string, which `run` returns
decoded. An exception that nobody caught in the page, or no result in time, raises PageFailed with all that the page
wrote to its console. For more than that there is `open`, which gives the page while it is there:

        page = await browser.open(url)
        await page.evaluate("start()")                   # the value of an expression; promises are awaited
        await page.wait_until("connected === true")      # true before the time is over, or PageFailed
        await page.offline(True)                         # the browser's own idea of having no network
        found = await page.result(timeout_s=20)

One browser serves many pages, each in its own context with its own storage. Names other than localhost do not resolve
in it, so that no page can reach anything but this machine. It is spoken to by the DevTools protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

START_S = 60.0
CALL_S = 60.0
POLL_S = 0.02
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium has none as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)


class PageFailed(AssertionError):
    """The browser did not start, or a page threw or was not finished in time."""


class Chromium:
    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._stack = contextlib.AsyncExitStack()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._number = 0
        self._socket: ClientConnection

    async def __aenter__(self) -> Chromium:
        async with contextlib.AsyncExitStack() as stack:
            profile = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            process = await self._start(profile)
            stack.push_async_callback(_end, process)
            address = await _address(profile, process)
            self._socket = await stack.enter_async_context(
                connect(address, max_size=None, ping_interval=None, open_timeout=START_S, proxy=None)
            )
            reading = asyncio.create_task(self._read())
            stack.push_async_callback(_finished, reading)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, url: str, *, timeout_s: float = 60.0) -> Any:
        """Open the page, wait for its `globalThis.result`, close it."""
        page = await self.open(url)
        try:
            return await page.result(timeout_s=timeout_s)
        finally:
            await page.close()

    async def open(self, url: str) -> Page:
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = (await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        answer = await page.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise PageFailed(f"{url} cannot be loaded: {answer['errorText']}")
        return page

    async def call(self, method: str, *, session: str = "", **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        self._number += 1
        number = self._number
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        try:
            answer: dict[str, Any] = await asyncio.wait_for(future, CALL_S)
        finally:
            self._calls.pop(number, None)
        if "error" in answer:
            raise PageFailed(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def _start(self, profile: Path) -> asyncio.subprocess.Process:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise PageFailed(f"no browser is installed; one of {', '.join(NAMES)} is needed")
        with (profile / "output").open("wb") as output:
            return await asyncio.create_subprocess_exec(
                program,
                *FLAGS,
                *self._flags,
                f"--user-data-dir={profile}",
                "about:blank",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # it starts processes of its own, which end with it
            )

    async def _read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            waiting = self._calls.get(message.get("id", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].heard(message["method"], message["params"])

    def forget(self, session: str) -> None:
        self._pages.pop(session, None)


class Page:
    def __init__(self, browser: Chromium, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        self.console: list[str] = []  # what it wrote, and what the browser wrote about it
        self._thrown = ""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, session=self._session, **parameters)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise self._failed(f"{expression!r} threw: {_description(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    async def wait_until(self, expression: str, *, timeout_s: float = 60.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await self.evaluate(f"!!({expression})"):
            if self._thrown:
                raise self._failed(f"the page threw: {self._thrown}")
            if asyncio.get_running_loop().time() > deadline:
                raise self._failed(f"{expression!r} did not come true within {timeout_s:g} s")
            await asyncio.sleep(POLL_S)

    async def result(self, *, timeout_s: float = 60.0) -> Any:
        await self.wait_until("typeof globalThis.result === 'string'", timeout_s=timeout_s)
        return json.loads(await self.evaluate("globalThis.result"))

    async def offline(self, now: bool) -> None:
        await self.call(
            "Network.emulateNetworkConditions", offline=now, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    async def close(self) -> None:
        self._browser.forget(self._session)
        await self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def heard(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            words = [str(argument.get("value", argument.get("description"))) for argument in event["args"]]
            self.console.append(f"{event['type']}: {' '.join(words)}")
        elif method == "Runtime.exceptionThrown":
            self._thrown = _description(event["exceptionDetails"])
            self.console.append(f"thrown: {self._thrown}")
        elif method == "Log.entryAdded":
            entry = event["entry"]
            self.console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")

    def _failed(self, what: str) -> PageFailed:
        return PageFailed("\n".join([what, *self.console[-40:]]))


def _description(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


async def _address(profile: Path, process: asyncio.subprocess.Process) -> str:
    """Where it listens; it writes that down when it does."""
    port_file = profile / "DevToolsActivePort"
    lines: list[str] = []

    def known() -> bool:
        nonlocal lines
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        return len(lines) == 2 or process.returncode is not None

    if not await _until(known, START_S) or process.returncode is not None:
        raise PageFailed(f"the browser did not start: {(profile / 'output').read_text(errors='replace')[-2000:]}")
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


async def _until(true: Callable[[], bool], timeout_s: float) -> bool:
    for _ in range(int(timeout_s / POLL_S)):
        if true():
            return True
        await asyncio.sleep(POLL_S)
    return true()


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _finished(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
