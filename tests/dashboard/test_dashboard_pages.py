"""Each page shows the data of the API, updates it, and acts through it; in a real browser, on a real cluster."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard import stage
from tests.dashboard.browsing import opened

from avow.testing.cluster import LocalCluster, wait_until

MARKUP = "<script>window.harm=1</script><img src=x onerror='window.harm=2'>"


def at(cluster: LocalCluster, page: str, *, peer: int = 1) -> str:
    return f"{cluster.api(peer)}/dashboard/#/{page}"


def row(page: Page, table: str, name: str) -> str:
    """The text of a table's row, by its first cell."""
    found = (
        page.get_by_role("table", name=table).get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))
    )
    return found.first.inner_text()


def lanes_agree(page: Page, cluster: LocalCluster) -> bool:
    """Lanes may end and change hands between a look at the page and one at the API: then it is looked again."""
    for lane in cluster.ask(1, "/v1/cluster")["lanes"]:
        shown = row(page, "Lanes of the cluster", f"{lane['queue']} · {lane['lane']}")
        lead = "ended" if lane["ended"] else f"peer {lane['coordinator'] or lane['owner']}"
        if lead not in shown or not (f"\t{lane['end']}\t" in shown or lane["queue"].startswith("avow.")):
            return False
    return True


def test_the_cluster_page_shows_peers_lanes_and_cursors_as_the_api_reports_them(
    browser: Browser, cluster: LocalCluster
) -> None:
    with opened(browser, at(cluster, "")) as page:
        expect(page.get_by_role("heading", name="Cluster", exact=True)).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Map of the cluster"))).to_be_visible()
        expect(page.locator("#fresh")).to_contain_text("live peer 1")
        cluster_status = cluster.ask(1, "/v1/cluster")
        for peer in cluster_status["peers"]:
            shown = row(page, "Peers of the cluster", f"peer {peer['number']}")
            assert "up" in shown
            assert cluster_status["version"] in shown
            assert peer["api"].removeprefix("http://") in shown
        wait_until(lambda: lanes_agree(page, cluster), what="lanes as the API tells them")
        behind = (
            next(lane["end"] for lane in cluster_status["lanes"] if (lane["queue"], lane["lane"]) == ("orders", 0)) - 3
        )
        expect(page.get_by_text(f"{behind} messages behind", exact=True)).to_be_visible()


def test_the_map_follows_writes(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, at(cluster, "")) as page:
        lane = page.locator("svg [data-key]").filter(has_text="payments")
        before = cluster.ask(1, "/v1/queues/payments")["lanes"][0]["end"]
        expect(lane).to_contain_text(f"{before} messages")
        stage.write(cluster, "payments", "one more")
        expect(lane).to_contain_text(f"{before + 1} messages")
        expect(lane).to_contain_text("ledger 2 behind")


def test_new_messages_of_a_queue_appear_and_no_cursor_moves(browser: Browser, cluster: LocalCluster) -> None:
    before = cluster.ask(1, "/v1/queues/orders/subscribers")
    with opened(browser, at(cluster, "queues/orders")) as page:
        messages = page.get_by_role("table", name="Messages, newest first")
        expect(messages).to_contain_text('"item": "lamp"')
        expect(page.get_by_text("removed after 7 d")).to_be_visible()
        assert "shipping" in row(page, "Subscribers, 2 names", "shipping")
        stage.write(cluster, "orders", "written elsewhere", key="customer 1")
        expect(messages.get_by_role("row").nth(1)).to_contain_text("written elsewhere")
        page.get_by_label("Key").fill("customer 2")
        page.get_by_label("Value").fill("written here")
        page.get_by_role("button", name="Write", exact=True).click()
        expect(page.locator("#said")).to_contain_text("Stored by a quorum as version")
        expect(messages.get_by_role("row").nth(1)).to_contain_text("written here")
    assert cluster.ask(1, "/v1/queues/orders/subscribers") == before


def test_messages_are_held_back_while_paused_and_all_appear_afterwards(browser: Browser, cluster: LocalCluster) -> None:
    stage.create(cluster, "held")
    with opened(browser, at(cluster, "queues/held")) as page:
        expect(page.get_by_text("No messages yet")).to_be_visible()
        expect(page.get_by_text("live", exact=True).last).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        for number in range(5):
            stage.write(cluster, "held", f"while paused {number}")
        expect(page.get_by_role("table", name="Lanes").get_by_role("cell").last).to_have_text("5")
        page.get_by_role("button", name="Resume").click()
        messages = page.get_by_role("table", name="Messages, newest first")
        expect(messages.get_by_role("row")).to_have_count(6)
        page.get_by_label("Filter").fill("PAUSED 3")
        expect(messages.get_by_role("row")).to_have_count(2)
        expect(messages).to_contain_text("while paused 3")


def test_trimming_asks_first(browser: Browser, cluster: LocalCluster) -> None:
    stage.create(cluster, "long")
    stage.write(cluster, "long", *"abcde")
    with opened(browser, at(cluster, "queues/long")) as page:
        page.get_by_label("Up to version").fill("3")
        page.get_by_role("button", name="Trim …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("3 messages, up to version 3, will be permanently removed")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        assert cluster.ask(1, "/v1/queues/long")["lanes"][0]["trimmed_to"] == 0
        page.get_by_role("button", name="Trim …").click()
        dialog.get_by_role("button", name="Trim").click()
        expect(page.locator("#said")).to_contain_text("trimmed to version 3")
        expect(page.get_by_role("table", name="Lanes")).to_contain_text("3")
    wait_until(lambda: cluster.ask(1, "/v1/queues/long")["lanes"][0]["trimmed_to"] == 3)


def test_message_contents_are_shown_as_plain_text(browser: Browser, cluster: LocalCluster) -> None:
    stage.create(cluster, "strange")
    stage.write(cluster, "strange", MARKUP, key=MARKUP, headers={"note": MARKUP})
    with opened(browser, at(cluster, "queues/strange")) as page:
        expect(page.get_by_role("table", name="Messages, newest first")).to_contain_text(MARKUP)
        page.get_by_role("link", name="1", exact=True).click()
        expect(page.locator("pre.value")).to_have_text(MARKUP)
        assert page.evaluate("window.harm") is None
        assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize(("queue", "strategy"), [("lives", "two-phase"), ("rumours", "pub-sub")])
def test_a_message_s_trace_is_drawn_described_and_updated(
    browser: Browser, cluster: LocalCluster, queue: str, strategy: str
) -> None:
    stage.create(cluster, queue, strategy=strategy)
    (written,) = stage.write(cluster, queue, json.dumps({"amount": 7}), key="customer 7")
    lane, version = written["lane"], written["first_version"]
    stage.ask(cluster, "PUT", f"/v1/queues/{queue}/subscribers/reader", {"versions": {str(lane): 0}})
    with opened(browser, at(cluster, f"queues/{queue}/{lane}/{version}")) as page:
        steps = page.locator("ol.steps")
        expect(steps).to_contain_text("has stored it")
        expect(steps).to_contain_text("Committed")
        expect(steps).to_contain_text("Visible to readers")
        expect(steps).to_contain_text("Not read by reader yet: its cursor is at 0.")
        drawn = page.get_by_role("img", name=re.compile("^Sequence diagram of the message"))
        expect(drawn).to_contain_text("not yet · cursor 0")
        stage.ask(cluster, "PUT", f"/v1/queues/{queue}/subscribers/reader", {"versions": {str(lane): version}})
        expect(steps).to_contain_text(f"Read by reader, whose cursor is at {version}.")
        expect(drawn).to_contain_text(f"read · cursor {version}")
        page.go_back()


def test_a_message_of_a_pledge_links_to_the_pledge_and_back(browser: Browser, cluster: LocalCluster) -> None:
    lines = 41  # forty were written, then the pledge's; others may have come since
    with opened(browser, at(cluster, f"queues/payments/0/{lines}")) as page:
        page.get_by_role("link", name="paid").click()
        expect(page.get_by_role("heading", name="Pledge paid")).to_be_focused()
        expect(page.get_by_role("table", name="Branches")).to_contain_text("delivered")
        page.go_back()
        expect(page.get_by_role("heading", name=f"Message {lines} of payments, lane 0")).to_be_visible()


def test_pledges_are_listed_by_status_which_is_part_of_the_address(browser: Browser, cluster: LocalCluster) -> None:
    with opened(browser, at(cluster, "pledges")) as page:
        listed = page.get_by_role("table", name="Pledges, newest first")
        for gid in stage.PLEDGES:
            expect(listed.get_by_role("rowheader", name=gid)).to_be_visible()
        page.get_by_label("Status").select_option("dead")
        expect(listed.get_by_role("row")).to_have_count(2)
        assert page.url.endswith("#/pledges?status=dead")
        page.go_back()
        expect(listed.get_by_role("row")).to_have_count(1 + len(stage.PLEDGES))
        expect(page.get_by_label("Status")).to_have_value("")


def test_a_dead_pledge_is_redriven_and_a_waiting_one_is_stopped_after_confirmation(
    browser: Browser, cluster: LocalCluster
) -> None:
    with opened(browser, at(cluster, "pledges/given-up")) as page:
        attempts = page.get_by_role("table", name="Last attempts")
        expect(attempts).to_contain_text("Connection refused")
        expect(page.get_by_role("img", name=re.compile("^Timeline of the pledge"))).to_be_visible()
        expect(page.get_by_role("button", name="Retry now")).to_be_disabled()
        before = attempts.get_by_role("row").count()
        page.get_by_role("button", name="Redrive").click()
        expect(attempts.get_by_role("row").nth(before)).to_be_visible()
        page.evaluate("location.hash = '#/pledges/waiting'")
        expect(page.get_by_text("only a dead pledge can be redriven")).to_be_visible()
        page.get_by_role("button", name="Retry now").click()
        expect(page.locator("#said")).to_contain_text("waiting is submitted")
        page.get_by_role("button", name="Stop …").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop it").click()
        expect(page.get_by_text("stopped from the dashboard")).to_be_visible()
    assert stage.status(cluster, "waiting") == "failed"


def test_the_pipelines_page_explains_how_to_start_one_then_shows_their_state(
    browser: Browser, cluster: LocalCluster
) -> None:
    with opened(browser, at(cluster, "pipelines"), complaints=True) as page:  # asking for a queue that is not there
        expect(page.get_by_text("avow pipeline run orders.toml")).to_be_visible()
        stage.create(cluster, "avow.pipelines")
        stage.report(cluster, "orders-to-delta", seconds=5)
        stage.report(cluster, "silent", at_s=time.time() - 60)
        listed = page.get_by_role("table", name="Pipelines")
        expect(listed).to_contain_text("5,000")
        assert "running" in row(page, "Pipelines", "orders-to-delta")
        assert "crashed" in row(page, "Pipelines", "silent")
        page.get_by_role("link", name="orders-to-delta").click()
        plot = page.get_by_role("img", name=re.compile("^Rows per second. now"))
        expect(plot).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Unprocessed messages"))).to_be_visible()
        reading = page.locator("figure", has=plot).locator("output")
        plot.hover()
        expect(reading).to_contain_text(re.compile(r"rows/s at \d\d:\d\d:\d\d"))
        stage.report(cluster, "orders-to-delta", rows=77_777)
        expect(page.get_by_role("table", name=re.compile("^The last"))).to_contain_text("77,777")
