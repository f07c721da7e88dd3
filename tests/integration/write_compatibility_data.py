"""Write data folders with the peers of a commit: `python -m tests.integration.write_compatibility_data COMMIT`.

It leaves two files in tests/integration/compatibility: COMMIT.tar.xz, with the folders of a cluster of one peer, which
was killed, and of a cluster of three peers, which were stopped in order; and COMMIT.json, with what these peers showed
of them. Files of a commit are written once: what its peers write does not change any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.compatibility_view import values_of, view, written_values
from tests.integration.earlier_version import unpack

from avow.testing.cluster import LocalCluster, wait_until
from avow.testing.cluster_process import environment_of
from avow.wire.ranges import CONTENT_TYPE, Range, parse_ranges

HERE = Path(__file__).parent
KEPT = HERE / "compatibility"
FOLDERS = {"one": 1, "three": 3}
FIRST = f"{1:020}-"  # the snapshot that a lane begins with, in the names of files


def main(commit: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        code = unpack(commit, Path(scratch))
        expected = {name: write(Path(scratch) / name, peers, code) for name, peers in FOLDERS.items()}
        KEPT.mkdir(exist_ok=True)
        text = json.dumps(expected, indent=1, sort_keys=True)
        (KEPT / f"{commit}.json").write_text(text + "\n")
        pack(Path(scratch), KEPT / f"{commit}.tar.xz")


def write(folder: Path, peers: int, code: Path) -> dict[str, Any]:
    with LocalCluster(peers, folder=folder, code=code) as cluster:
        record = fill(cluster, code, *(["snapshots"] if peers == 1 else []))
        wait_until(partial(agree, cluster), what="all peers show the same ends")
        shown = [view(cluster.api(number), writes=record["writes"]) for number in cluster.founders]
        check(cluster, shown, record)
        if peers > 1:
            cluster.stop_all()
    return shown[0]


def fill(cluster: LocalCluster, code: Path, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.compatibility_program", cluster.addresses, *flags]
    environment = environment_of("", code=code)
    output = subprocess.run(command, env=environment, cwd=HERE.parents[1], stdout=subprocess.PIPE, check=True).stdout
    record: dict[str, Any] = json.loads(output)
    return record


def agree(cluster: LocalCluster) -> bool:
    """Every peer shows the same end of every lane."""
    shown = [cluster.ask(number, "/v1/queues?internal=true")["queues"] for number in cluster.founders]
    lanes = [[lane for queue in queues for lane in queue["lanes"]] for queues in shown]
    ends = [[(lane["number"], lane["end"], lane["trimmed_to"]) for lane in seen] for seen in lanes]
    return all(other == ends[0] for other in ends)


def check(cluster: LocalCluster, shown: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """All peers show the acknowledged writes, and the folders contain the cases they were written for."""
    assert all(other == shown[0] for other in shown)
    assert shown[0]["writes"] == record["writes"]
    written = written_values(record["values"])
    for name, lanes in values_of(shown[0]).items():
        assert lanes.keys() == written.get(name, {}).keys(), name
        for lane, values in lanes.items():
            trimmed_to = shown[0]["queues"][name]["lanes"][lane]["trimmed_to"]
            assert values == written[name][lane][trimmed_to:], name
            assert bool(trimmed_to) == name.startswith("trimmed"), name
    assert any(found.count > 1 for found in ranges_of(cluster, "small")), "no writes were merged; write the data again"
    long = [str(queue["lanes"]["0"]["number"]) for name, queue in shown[0]["queues"].items() if "long" in name]
    wanted = {"0", *long} if long else set(shown[0]["queues"]["trimmed-events"]["lanes"])
    snapshots = {path.parent.name for path in cluster.data(1).glob("lanes/*/*.snap") if not path.name.startswith(FIRST)}
    assert snapshots >= wanted, f"snapshots of lanes {wanted}, not of {snapshots}"


def ranges_of(cluster: LocalCluster, queue: str) -> list[Range]:
    """The records that hold a queue's messages."""
    url = f"{cluster.api(1)}/v1/queues/{queue}/messages?max=10000"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": CONTENT_TYPE}), timeout=60) as answer:
        return list(parse_ranges(answer.read()))


def pack(scratch: Path, target: Path) -> None:
    """The log is hundreds of megabytes of zeros: they become holes, which tar leaves out and restores."""
    sparse = scratch / "sparse"
    for name, peers in FOLDERS.items():
        (sparse / name).mkdir(parents=True)
        for number in range(1, peers + 1):
            folder = f"{name}/peer-{number}"
            subprocess.run(["cp", "-r", "--sparse=always", str(scratch / folder), str(sparse / folder)], check=True)
    flags = ["--sparse", "--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--xz"]
    subprocess.run(["tar", "-C", str(sparse), *flags, "-cf", str(target), *FOLDERS], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
