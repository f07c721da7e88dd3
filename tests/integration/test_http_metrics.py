"""The output of /metrics, its table in the code and its documentation page agree."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.http_peer import PeerProcess, serving, wait_until

from avow.server.metrics import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def families(peer: PeerProcess) -> dict[str, tuple[str, str]]:
    text = peer.ask("GET", "/metrics").body.decode()
    return {family.name: (family.type, family.documentation) for family in text_string_to_metric_families(text)}


def test_metrics_match_their_page(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    described = {name: (kind, text) for name, kind, _, text in rows}
    labels = {name: tuple(re.findall(r"`(\w+)`", listed)) for name, _, listed, _ in rows}
    assert described == {info.name: (info.type, info.help) for info in METRICS}
    assert labels == {info.name: info.labels for info in METRICS}
    with serving(tmp_path) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        peer.ask("POST", "/v1/queues", {"name": 'odd "name"\\'})
        assert families(peer) == described
        text = peer.ask("GET", "/metrics").body.decode()
        assert 'avow_lane_end{lane="0",queue="odd \\"name\\"\\\\"} 0.0' in text
        before = _value(text, "avow_http_requests_total")
        peer.ask("GET", "/healthz")
        assert _value(peer.ask("GET", "/metrics").body.decode(), "avow_http_requests_total") == before + 2


def _value(text: str, name: str) -> float:
    return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])
