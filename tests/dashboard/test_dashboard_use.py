"""Use of the dashboard: by keyboard, with a screen reader, on a phone, in dark mode, while peers are killed."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard import stage
from tests.dashboard.browsing import PHONE, opened

from avow import dashboard
from avow.testing.cluster import LocalCluster

JS_BYTES_MAX = 78_000
PAGES = {
    "": "Peers of the cluster",
    "queues": "Queues",
    "queues/orders": "Messages, newest first",
    "queues/payments/0/41": "",
    "pledges": "Pledges, newest first",
    "pledges/given-up": "Last attempts",
    "pipelines": "",
}
NAMELESS = """() => [...document.querySelectorAll("input, select, button, a, svg[role=img]")].filter((one) =>
    !(one.labels?.length || one.textContent.trim() || one.getAttribute("aria-label"))).map((one) => one.outerHTML)"""


def address(cluster: LocalCluster, *, peer: int = 1) -> str:
    return f"{cluster.api(peer)}/dashboard/"


def walk(page: Page, path: str) -> None:
    page.evaluate("(path) => (location.hash = '#/' + path)", path)
    if PAGES.get(path):
        expect(page.get_by_role("table", name=PAGES[path])).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_phone_and_every_control_has_a_name(browser: Browser, cluster: LocalCluster, dark: bool) -> None:
    scheme = "dark" if dark else "light"
    with opened(browser, address(cluster), viewport=PHONE, color_scheme=scheme, complaints=True) as page:
        for path in PAGES:
            walk(page, path)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
            assert page.evaluate(NAMELESS) == [], path
            assert page.locator("h1").count() == 1, path
            expect(page.get_by_role("main")).to_be_visible()
            expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert (brightness(page) < 0.3) is dark


def brightness(page: Page) -> float:
    colour: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 765


def test_a_manually_chosen_colour_scheme_is_remembered(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster)) as page:
        assert brightness(page) > 0.7
        page.get_by_role("button", name="Colours").click()
        assert brightness(page) < 0.3
        page.reload()
        expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
        assert brightness(page) < 0.3


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster)) as page:
        expect(page.get_by_role("table", name=PAGES[""])).to_be_visible()
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.get_by_role("link", name="Cluster", exact=True).focus()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Queues")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Queues")).to_be_focused()
        page.get_by_role("link", name="orders").press("Enter")
        expect(page.get_by_role("heading", name="Queue orders")).to_be_focused()
        page.get_by_label("Value").fill("by keyboard")
        page.get_by_label("Value").press("Enter")
        expect(page.get_by_role("table", name=PAGES["queues/orders"])).to_contain_text("by keyboard")
        page.get_by_label("Up to version").fill("1")
        page.get_by_label("Up to version").press("Enter")
        expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_typed_text_and_focus_survive_updates(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster) + "#/queues/orders") as page:
        page.get_by_label("Value").fill("half a sent")
        stage.write(cluster, "orders", "another comes in")
        expect(page.get_by_role("table", name=PAGES["queues/orders"])).to_contain_text("another comes in")
        expect(page.get_by_label("Value")).to_be_focused()
        expect(page.get_by_label("Value")).to_have_value("half a sent")


def test_an_unknown_page_and_an_unknown_queue_are_reported(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster) + "#/nowhere", complaints=True) as page:
        expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        page.evaluate("location.hash = '#/queues/missing'")
        expect(page.get_by_text("UNKNOWN_QUEUE")).to_be_visible()
        expect(page.get_by_text("there is no queue 'missing'")).to_be_visible()


def test_without_a_network_it_shows_since_when_the_data_is_stale(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster), complaints=True) as page:
        expect(page.get_by_role("table", name=PAGES[""])).to_be_visible()
        page.context.set_offline(True)
        expect(page.locator("#fresh")).to_contain_text(re.compile(r"stale since \d\d:\d\d:\d\d"))
        expect(page.get_by_role("table", name=PAGES[""])).to_be_visible()
        expect(page.locator("#elsewhere").get_by_role("link", name="peer 2")).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#fresh")).to_contain_text("live")


def test_it_switches_to_another_peer_when_its_own_is_killed(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, address(cluster, peer=3) + "#/queues/orders", complaints=True) as page:
        messages = page.get_by_role("table", name=PAGES["queues/orders"])
        expect(page.locator("#fresh")).to_contain_text("peer 3")
        stage.write(cluster, "orders", "before the death")
        expect(messages).to_contain_text("before the death")
        cluster.kill(3)
        try:
            expect(page.locator("#fresh")).to_contain_text(re.compile("live peer [12]"))
            stage.write(cluster, "orders", "after the death")
            expect(messages).to_contain_text("after the death")
            page.get_by_label("Value").fill("written through another")
            page.get_by_label("Value").press("Enter")
            expect(messages).to_contain_text("written through another")
            page.evaluate("location.hash = '#/'")
            dead = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="peer 3"))
            expect(dead).to_contain_text("down")
            expect(page.get_by_text("2 of 3 up")).to_be_visible()
        finally:
            cluster.restart(3)
        expect(page.get_by_text("3 of 3 up")).to_be_visible()


# ---------------------------------------------------------------------- the files


def fetch(url: str, **headers: str) -> tuple[int, Any, bytes]:
    class Here(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(Here, urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_the_root_redirects_to_the_page_and_its_files_are_cached(cluster: LocalCluster) -> None:
    for path in ("/", "/dashboard"):
        status, headers, _ = fetch(cluster.api(1) + path)
        assert (status, headers["location"]) == (302, "dashboard/")
    status, headers, body = fetch(address(cluster))
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Avow</title>" in body
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert all(f"{cluster.api(number)} {cluster.api(number).replace('http', 'ws')}" in policy for number in (1, 2, 3))
    status, _, _ = fetch(address(cluster) + "files/app.js", **{"if-none-match": '"another"'})
    assert status == 200
    _, headers, _ = fetch(address(cluster) + "files/app.js")
    assert fetch(address(cluster) + "files/app.js", **{"if-none-match": headers["etag"]})[0] == 304


@pytest.mark.parametrize("path", ["files/missing.js", "files/../__init__.py", "files/%2e%2e/app.js", "other"])
def test_no_other_files_are_served(cluster: LocalCluster, path: str) -> None:
    assert fetch(address(cluster) + path)[0] == 404


def test_the_files_are_small_and_name_no_other_host() -> None:
    files = {name: body.decode() for name, (_, body) in dashboard.files().items()}
    scripts = [body for name, body in files.items() if name.endswith(".js")]
    assert sum(len(body.encode()) for body in scripts) < JS_BYTES_MAX
    assert max(body.count("\n") for body in files.values()) < 300
    for name, body in files.items():
        hosts = set(re.findall(r"https?://([\w.]+)", body)) - {"www.w3.org"}
        assert not hosts, (name, hosts)
        assert "innerHTML" not in body
        assert "eval(" not in body
