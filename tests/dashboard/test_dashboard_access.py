"""Access with tokens: without a token nothing is shown, and actions without a right are disabled."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard import stage
from tests.dashboard.browsing import opened

from avow.testing.cluster import LocalCluster

RIGHTS = {
    "root": "admin = true",
    "reader": 'rights = { "order*" = ["read"], "avow.pledges" = ["read"] }',
    "clerk": 'rights = { "orders" = ["read", "write"] }',
}


def tokens_file(folder: Path) -> Path:
    path = folder / "tokens.toml"
    entries = (
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256(f"secret of {name}".encode()).hexdigest()}"\n{rights}\n'
        for name, rights in RIGHTS.items()
    )
    path.write_text("".join(entries))
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"tokens": str(tokens_file(tmp_path_factory.mktemp("tokens")))}
    with LocalCluster(3, settings=settings, token="secret of root") as running:
        stage.create(running, "orders")
        stage.create(running, "salaries")
        stage.write(running, "orders", "tea", "book")
        stage.write(running, "salaries", "nobody's business")
        body = {"branches": [{"url": f"{stage.DISCARD}/ship"}], "retry_interval_s": 60}
        stage.ask(running, "POST", "/v1/pledges/waiting/submit", body)
        yield running


def address(cluster: LocalCluster, page: str = "", *, peer: int = 1) -> str:
    return f"{cluster.api(peer)}/dashboard/#/{page}"


def sign_in(page: Page, name: str) -> None:
    page.get_by_label("Token", exact=True).fill(f"secret of {name}")
    page.get_by_role("button", name="Use this token").click()


def test_without_a_token_only_the_token_prompt_is_shown(browser: Browser, guarded: LocalCluster) -> None:
    with opened(browser, address(guarded, "queues/orders"), complaints=True) as page:
        expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
        expect(page.get_by_text("NOT_AUTHENTICATED")).to_be_visible()
        sign_in(page, "a stranger")
        expect(page.get_by_text("this peer does not know the token")).to_be_visible()
        assert page.get_by_role("table").count() == 0
        sign_in(page, "reader")
        expect(page.get_by_role("heading", name="Queue orders")).to_be_visible()
        expect(page.get_by_role("table", name="Messages, newest first")).to_contain_text("book")
        assert page.evaluate("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
        assert "secret" not in page.content()
        page.reload()
        expect(page.get_by_role("heading", name="Queue orders")).to_be_visible()
        page.locator("#who summary").click()
        page.get_by_role("button", name="Forget this token").click()
        expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_actions_that_a_reader_may_not_take_are_disabled_with_the_reason(
    browser: Browser, guarded: LocalCluster
) -> None:
    with opened(browser, address(guarded, "queues/orders"), complaints=True) as page:
        sign_in(page, "reader")
        expect(page.get_by_text("your token has no right to write on orders")).to_be_visible()
        expect(page.get_by_text("your token has no right to manage on orders")).to_be_visible()
        for name in ("Write", "Trim …"):
            expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
        expect(page.get_by_label("Value")).to_be_disabled()
        page.locator("#who summary").click()
        expect(page.locator("#who")).to_contain_text("read on queues order*")
        page.evaluate("location.hash = '#/pledges/waiting'")
        for name in ("Retry now", "Redrive", "Stop …"):
            expect(page.get_by_role("button", name=name)).to_be_disabled()
        expect(page.get_by_text("your token has no right to write on avow.pledges").first).to_be_visible()
        page.evaluate("location.hash = '#/queues'")
        expect(page.get_by_role("table", name="Queues")).to_contain_text("orders")
        expect(page.get_by_text("salaries")).to_have_count(0)
        page.evaluate("location.hash = '#/queues/salaries'")
        expect(page.get_by_text("FORBIDDEN")).to_be_visible()
        expect(page.get_by_text("token 'reader' has no 'use' right on queue 'salaries'")).to_be_visible()


def test_a_writer_can_write_and_an_api_refusal_is_shown_unchanged(browser: Browser, guarded: LocalCluster) -> None:
    with opened(browser, address(guarded, "queues/orders"), complaints=True) as page:
        sign_in(page, "clerk")
        page.get_by_label("Value").fill("lamp")
        page.get_by_role("button", name="Write", exact=True).click()
        expect(page.get_by_role("table", name="Messages, newest first")).to_contain_text("lamp")
        expect(page.get_by_role("button", name="Trim …")).to_be_disabled()
        page.evaluate("location.hash = '#/pledges'")
        expect(page.get_by_text("token 'clerk' has no 'read' right on queue 'avow.pledges'")).to_be_visible()


def test_the_token_is_also_used_for_another_peer(browser: Browser, guarded: LocalCluster) -> None:
    with opened(browser, address(guarded, "queues/orders", peer=2), complaints=True) as page:
        sign_in(page, "root")
        expect(page.locator("#fresh")).to_contain_text("live peer 2")
        guarded.kill(2)
        try:
            expect(page.locator("#fresh")).to_contain_text("live peer")
            stage.write(guarded, "orders", "after the death")
            expect(page.get_by_role("table", name="Messages, newest first")).to_contain_text("after the death")
            expect(page.locator("#fresh")).not_to_contain_text("peer 2")
        finally:
            guarded.restart(2)
