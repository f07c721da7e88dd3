"""The view of a cluster, from the answers of its peers to the tables."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from avow.cli.peer import start_command
from avow.cli.status import ClusterView, PeerAnswers, SubscriberView, as_object, compose, tables
from avow.cli.up import ProcessView, Rates, next_lines, screen_of


def shown(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(what)
    return console.export_text()


def listed(number: int, state: str = "ready") -> dict[str, Any]:
    return {
        "number": number,
        "api": f"http://10.0.0.{number}:7400",
        "link": f"10.0.0.{number}:7500",
        "state": state,
        "voter": True,
    }


def queue(end: int, *, coordinator: int | None = 2, held: bool = True) -> dict[str, Any]:
    lane = {"lane": 0, "number": 5, "end": end, "trimmed_to": 3, "coordinator": coordinator, "voters": [1, 2, 3]}
    return {"name": "orders", "strategy": "two-phase", "lanes": [{**lane, "owner": None, "ended": False, "held": held}]}


def answers_of(end: int, *, coordinator: int | None = 2, held: bool = True) -> PeerAnswers:
    answered = {"cluster": "c1", "incarnation": 4}
    return PeerAnswers(up=True, ready=True, cluster=answered, queues=(queue(end, coordinator=coordinator, held=held),))


def three(**changes: PeerAnswers) -> ClusterView:
    answers = {1: answers_of(120), 2: answers_of(120), 3: answers_of(100)}
    answers |= {int(name[1:]): answer for name, answer in changes.items()}
    return compose([listed(1), listed(2), listed(3)], answers, asked="http://10.0.0.1:7400")


def test_a_lane_ends_where_the_most_advanced_peer_shows_it_and_the_others_lag() -> None:
    (lane,) = three().lanes
    assert (lane.end, lane.ends, lane.lag, lane.coordinator) == (120, {1: 120, 2: 120, 3: 100}, {3: 20}, 2)


def test_a_peer_without_a_copy_is_not_behind() -> None:
    (lane,) = three(p3=answers_of(0, held=False)).lanes
    assert (lane.end, lane.lag) == (120, {})


def test_a_peer_that_claims_to_coordinate_is_preferred_to_the_views_of_others() -> None:
    (lane,) = three(
        p1=answers_of(120, coordinator=1), p2=answers_of(120, coordinator=1), p3=answers_of(100, coordinator=2)
    ).lanes
    assert lane.coordinator == 1


def test_a_peer_that_does_not_answer_is_shown_as_down_with_the_reason() -> None:
    text = shown(tables(three(p3=PeerAnswers(trouble="connection refused"))))
    assert "3 peers, 2 up" in text
    assert "connection refused" in text
    assert "orders" in text
    assert "120" in text


def test_a_peer_that_left_is_not_in_the_table() -> None:
    view = compose([listed(1), listed(2, "gone"), listed(3, "joining")], {1: answers_of(1), 3: answers_of(1)})
    assert [peer.number for peer in view.peers] == [1, 3]
    assert view.removed == (2,)
    assert "joining" in shown(tables(view))


def test_a_lane_without_a_coordinator_is_shown_as_such() -> None:
    nobody = {f"p{number}": answers_of(1, coordinator=None) for number in (1, 2, 3)}
    assert "none" in shown(tables(three(**nobody)))


def test_names_are_shown_literally_whatever_they_contain() -> None:
    odd = {**queue(1), "name": "[red]alarm[/]"}
    view = compose([listed(1)], {1: PeerAnswers(up=True, ready=True, queues=(odd,))})
    assert "[red]alarm[/]" in shown(tables(view))


def test_an_empty_cluster_says_how_to_create_a_queue() -> None:
    view = compose([listed(1)], {1: PeerAnswers(up=True, ready=True)})
    assert "avow queue create NAME" in shown(tables(view))


def test_the_json_object_has_the_contents_of_the_tables() -> None:
    view = three()
    view = ClusterView(
        **{name: getattr(view, name) for name in view.__struct_fields__ if name != "subscribers"},
        subscribers=(SubscriberView("orders", "audit", {0: 100}, hold=True, lag=20),),
    )
    found = as_object(view)
    assert found["cluster"] == "c1"
    assert [peer["up"] for peer in found["peers"]] == [True, True, True]
    assert found["lanes"][0]["lag"] == {"3": 20}
    assert found["subscribers"] == [
        {"queue": "orders", "name": "audit", "versions": {"0": 100}, "hold": True, "lag": 20}
    ]
    assert "audit" in shown(tables(view))


# ---------------------------------------------------------------------- avow up


def test_the_live_view_counts_down_to_the_return_of_a_dead_peer() -> None:
    processes = {
        1: ProcessView(11, alive=True, rss_bytes=50_000_000, cpu=0.25),
        2: ProcessView(12, alive=False, returns_in_s=3.6),
    }
    apis = {number: f"http://127.0.0.1:740{number}" for number in processes}
    view = compose([listed(1), listed(2)], {1: answers_of(120), 2: PeerAnswers(trouble="gone")})
    text = shown(
        screen_of(
            view,
            processes=processes,
            apis=apis,
            rates={5: 1234.0},
            events=["12:00:00 peer 2 was killed"],
            title="t",
            addresses="A",
        )
    )
    for part in ("down, restart in 4 s", "1,234", "25%", "50.0 MB", "peer 2 was killed", "export AVOW_API=A"):
        assert part in text


def test_the_live_view_shows_peers_before_anybody_answers() -> None:
    text = shown(
        screen_of(
            None,
            processes={1: ProcessView(11, alive=True)},
            apis={1: "x"},
            rates={},
            events=[],
            title="t",
            addresses="A",
        )
    )
    assert "starting" in text


def test_rates_are_computed_from_two_samples() -> None:
    rates = Rates()
    assert rates.update(three(), 10.0) == {}
    assert rates.update(three(p1=answers_of(320)), 12.0) == {5: 100.0}


def test_the_suggested_commands_name_the_address() -> None:
    assert next_lines("http://a:1")[0] == "export AVOW_API=http://a:1"


# ---------------------------------------------------------------------- avow peer add


def test_a_new_peer_gets_the_next_number_and_the_next_ports() -> None:
    known = [{"number": 1, "api": "http://127.0.0.1:7402", "link": "127.0.0.1:7502"}]
    command = start_command(known, member="http://127.0.0.1:7402", data="", host="127.0.0.1")
    assert " ".join(command) == (
        "avow serve --data avow-peer-2 --listen 127.0.0.1:7403 --peer-listen 127.0.0.1:7503 --join http://127.0.0.1:7402"
    )
