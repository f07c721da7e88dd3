"""The structure rules, on small trees that are written here."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from benchmarks import structure
from benchmarks.structure import measure_tree
from benchmarks.structure_lanes import shared_attributes
from benchmarks.structure_rules import error_lists, http_clients, places_that_wait, single_importers
from benchmarks.structure_source import Source

LANES = "avow.replication.two_phase"


def tree(folder: Path, **files: str) -> Source:
    """`a__b="..."` is the module a/b.py; every folder is a package."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        (inner / "__init__.py").touch()
    return Source(folder)


def lane(folder: Path, **files: str) -> list[str]:
    source = tree(folder, **{f"avow__replication__two_phase__{name}": text for name, text in files.items()})
    return list(shared_attributes(source, LANES))


# ---------------------------------------------------------------------- attributes of a lane

STATE = """
    class Ground:
        def __init__(self):
            self.end = 0
            self.role = 0
            self.waiting = []
            self.known = {}
"""


def test_an_attribute_that_two_links_of_a_chain_change_is_shared(tmp_path: Path) -> None:
    found = lane(
        tmp_path,
        ground=STATE,
        follower="""
            from avow.replication.two_phase.ground import Ground

            class Follower(Ground):
                def hear(self):
                    self.end += 1
                    self.waiting.append(1)
        """,
        core="""
            from avow.replication.two_phase.follower import Follower

            class Core(Follower):
                def tick(self):
                    self.end, self.role = 0, 1
        """,
    )
    assert found == ["Ground.end"]


def test_an_attribute_that_is_made_in_one_file_and_changed_in_one_other_has_one_writer(tmp_path: Path) -> None:
    role = """
        from avow.replication.two_phase.ground import Ground

        class Follower:
            def __init__(self, state: Ground):
                self.state = state
                self.end = 0

            def hear(self):
                self.end += 1
                self.state.role = 2
                self.state.known[3] = 4
    """
    assert lane(tmp_path, ground=STATE, follower=role) == []


@pytest.mark.parametrize(
    "change",
    [
        "self.state.waiting.append(1)",
        "self.state.waiting[0] = 1",
        "del self.state.waiting[0]",
        "self.state.waiting += [1]",
        "waiting = self.state.waiting; waiting.clear()",
        "state = self.state; state.waiting.pop()",
        "first, self.state.waiting = 1, []",
        "for self.state.waiting in (): pass",
    ],
)
def test_every_kind_of_change_counts(tmp_path: Path, change: str) -> None:
    role = """
        from avow.replication.two_phase.ground import Ground

        class {name}:
            def __init__(self, state: Ground):
                self.state = state
                self.waiting = ()

            def hear(self):
                {change}
    """
    other = role.format(name="Claim", change="self.state.waiting.append(2)")
    found = lane(tmp_path, ground=STATE, follower=role.format(name="Follower", change=change), claim=other)
    assert found == ["Ground.waiting"]


def test_reading_is_not_a_change(tmp_path: Path) -> None:
    reader = """
        def look(state):
            found = state.waiting[0], state.known.get(1), state.end + 1
            waiting = state.waiting
            waiting = []
            return found
    """
    writer = """
        def move(state):
            state.waiting.append(1); state.known.clear(); state.end = 2
    """
    assert lane(tmp_path, ground=STATE, reader=reader, writer=writer) == []


def test_a_change_from_outside_the_package_counts_when_its_owner_is_written_down(tmp_path: Path) -> None:
    outside = """
        from avow.replication.two_phase.ground import Ground

        class Composition:
            def __init__(self):
                self.core = Ground()

            def fill(self, unknown):
                self.core.end = 1
                unknown.role = 1
    """
    source = tree(
        tmp_path,
        avow__replication__two_phase__ground=STATE,
        avow__replication__two_phase__role="def move(state):\n    state.end = state.role = 2\n",
        avow__node__role=outside,
        avow__testing__role=outside.replace("unknown.role", "self.core.role"),
    )
    assert shared_attributes(source, LANES) == {"Ground.end": ["avow/node/role.py", "role.py"]}


def test_an_owner_that_nothing_names_is_every_class_with_such_an_attribute(tmp_path: Path) -> None:
    first = "def one(lanes):\n    for lane in lanes:\n        lane.end = 1\n"
    second = "def two(lanes):\n    lanes[0].end = 2\n"
    assert lane(tmp_path, ground=STATE, first=first, second=second) == ["Ground.end"]


def test_a_variable_reassigned_to_its_own_attribute_is_ignored(tmp_path: Path) -> None:
    walk = "def walk(node):\n    node = node.next\n    node.end = 1\n"
    assert lane(tmp_path, ground=STATE, walk=walk) == []


# ---------------------------------------------------------------------- sends that wait for a sync

EFFECTS = """
    class Effects:
        ticket: int
        sends_now: list[tuple[int, Message]]
        sends_synced: list[tuple[int, Message]]
"""
HOLDER = """
    from collections import deque

    class Holder:
        def __init__(self):
            self._now: list[tuple[int, Message]] = []
            self._waiting: deque[tuple[int, Message]] = deque()

        def drain(self):
            now, self._now = self._now, []
            return now

        def persisted(self, proof):
            self._release()

        def _release(self):
            waiting = self._waiting
            while waiting:
                self._now.append(waiting.popleft())
"""
JOINER = """
    from avow.effects import Effects

    class Joiner:
        def __init__(self):
            self._marks = []

        def drain(self):
            effects = Effects(0, [], [])
            for part in self.parts:
                effects.sends_now += part.sends_now
                effects.sends_synced += part.sends_synced
            self._marks.append(1)
            return effects

        def persisted(self, ticket):
            del self._marks[0]
"""
PASSER = """
    from avow.effects import Effects

    class Passer:
        def __init__(self):
            self._parts = {}
            self._touched = []

        def drain(self):
            effects = Effects(0, [], [])
            for part in self._touched:
                effects.sends_now += part.drain().sends_now
            return effects

        def persisted(self, proof):
            self._touched = []
            for part in self._parts:
                part.persisted(proof)
"""


def test_code_that_holds_sends_until_a_sync_is_counted(tmp_path: Path) -> None:
    source = tree(tmp_path, avow__effects=EFFECTS, avow__holder=HOLDER, avow__joiner=JOINER, avow__passer=PASSER)
    assert places_that_wait(source) == ["Holder.drain (avow/holder.py)", "Joiner.drain (avow/joiner.py)"]


def test_a_chain_of_classes_counts_once_wherever_its_parts_are(tmp_path: Path) -> None:
    head, _, tail = HOLDER.partition("        def persisted")
    core = "    from avow.ground import Holder\n\n    class Core(Holder):\n        def persisted" + tail
    mutant = (
        "    from avow.core import Core\n\n    class Mutant(Core):\n        def drain(self):\n            return None\n"
    )
    source = tree(tmp_path, avow__ground=head, avow__core=core, avow__testing__mutant=mutant)
    assert places_that_wait(source) == ["Holder.drain (avow/ground.py)"]


def test_code_that_only_sends_or_only_counts_is_not_counted(tmp_path: Path) -> None:
    sender, account = HOLDER.replace("persisted", "released"), HOLDER.replace("Message", "int")
    assert places_that_wait(tree(tmp_path, avow__sender=sender, avow__account=account)) == []


def test_sends_passed_on_in_a_record_are_one_collection(tmp_path: Path) -> None:
    mux = """
        from avow.effects import Effects

        class Mux:
            def __init__(self):
                self._sends: list[tuple[int, Message]] = []
                self._marks = []

            def drain(self):
                return Effects(0, self._sends, [])

            def persisted(self, proof):
                self._marks.pop()
    """
    assert places_that_wait(tree(tmp_path, avow__effects=EFFECTS, avow__mux=mux)) == []


def test_messages_are_recognized_by_an_alias_too(tmp_path: Path) -> None:
    alias = "    Send = tuple[int, Message]\n" + HOLDER.replace("tuple[int, Message]", "Send")
    assert len(places_that_wait(tree(tmp_path, avow__holder=alias))) == 1


# ---------------------------------------------------------------------- lists of errors

ERRORS = """
    class AvowError(Exception):
        code = "ERROR"

    class Offline(AvowError):
        code = "OFFLINE"

    class Busy(AvowError):
        code: str = "BUSY"
"""


def test_lists_of_codes_that_decide_are_found_by_name_and_in_place(tmp_path: Path) -> None:
    source = tree(
        tmp_path,
        avow__errors=ERRORS,
        avow__guards="""
            PASSING = frozenset({"OFFLINE", "BUSY"})
        """,
        avow__user="""
            from avow.errors import Busy, Offline
            from avow.guards import PASSING

            _RETRIED = (Offline.code, Busy.code)

            def is_passing(answer, code):
                return answer.code in PASSING or code not in _RETRIED or answer.code in ("OFFLINE", "BUSY")
        """,
    )
    assert error_lists(source) == (["avow/guards.py: PASSING"], ["avow/user.py: _RETRIED", "avow/user.py:8"])


def test_a_list_that_decides_nothing_or_holds_other_words_is_not_counted(tmp_path: Path) -> None:
    user = """
        PASSING = {"OFFLINE", "BUSY"}
        PASSING_ONE = {"OFFLINE"}
        STATUSES = {"OFFLINE", "BUSY", "open"}

        def look(answer, name):
            return name in PASSING, answer.code in PASSING_ONE, answer.code in STATUSES
    """
    assert error_lists(tree(tmp_path, avow__errors=ERRORS, avow__user=user)) == ([], [])


# ---------------------------------------------------------------------- HTTP clients, importers


def test_http_clients_are_found_by_what_they_use_or_parse(tmp_path: Path) -> None:
    by_hand = """
        END = b"\\r\\n\\r\\n"

        def parse(data):
            return data.find(END), data.find(b"content-length:")
    """
    writes = 'HEAD = b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n"\n'
    asks = "from urllib.request import urlopen\n\ndef ask(url):\n    return urlopen(url)\n"
    connects = "import http.client\n\ndef ask(host):\n    return http.client.HTTPConnection(host)\n"
    catches = "import http.client\n\nFAILED = http.client.HTTPException\n"
    source = tree(
        tmp_path,
        avow__client__by_hand=by_hand,
        avow__peer__writes=writes,
        avow__peer__asks=asks,
        avow__peer__parses="import httptools\n\nparser = httptools.HttpResponseParser(None)\n",
        avow__peer__serves="import httptools\n\nparser = httptools.HttpRequestParser(None)\n",
        avow__cli__doctor_network=connects,
        avow__cli__catches=catches,
        avow__testing__connects=connects,
    )
    product = ["avow/client/by_hand.py", "avow/peer/asks.py", "avow/peer/parses.py"]
    assert http_clients(source) == (product, ["avow/testing/connects.py"])


def test_a_module_with_one_importer_in_its_package_is_named_with_it(tmp_path: Path) -> None:
    source = tree(
        tmp_path,
        avow__a__alone="",
        avow__a__shared="",
        avow__a__far="",
        avow__a__user="from avow.a import alone\nfrom avow.a.shared import x\n",
        avow__a__second="from . import shared\n",
        avow__b__user="import avow.a.far\n",
    )
    assert single_importers(source) == {"avow/a/alone.py": "avow/a/user.py"}


# ---------------------------------------------------------------------- the command


def test_a_tree_without_these_packages_counts_nothing(tmp_path: Path) -> None:
    tree(tmp_path, avow__empty="")
    assert {row.count for row in measure_tree(tmp_path, name="empty").rows} == {0}


def test_the_command_prints_a_column_and_writes_every_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(tmp_path / "src", avow__effects=EFFECTS, avow__joiner=JOINER)
    kept = tmp_path / "structure.json"
    assert structure.main(["--json", str(kept), "--verbose"], root=tmp_path) == 0
    assert "Joiner.drain (avow/joiner.py)" in capsys.readouterr().out
    [column] = msgspec.json.decode(kept.read_bytes(), type=list[structure.Column])
    assert [row.count for row in column.rows if "sync" in row.title] == [1]


def test_a_commit_is_shown_beside_the_working_tree(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(checkout / "src", avow__effects=EFFECTS, avow__joiner=JOINER)
    assert structure.main(["--before", "HEAD"], root=checkout) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "until a sync" in line)
    assert [word for word in row.split() if word.isdigit()] == ["0", "1"]


def test_a_folder_without_history_has_no_commit_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert structure.main(["--before", "HEAD"], root=tmp_path) == 2
    assert "not a git checkout" in capsys.readouterr().err
