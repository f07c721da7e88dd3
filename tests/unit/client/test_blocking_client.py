"""The blocking client has every public method of the async one, with the same parameters."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from tools import blocking_client
from tools.blocking_client import Disagreement, members, methods
from tools.blocking_faces import MODULES, TRANSACTION, Face

from avow.client import blocking, blocking_channels, blocking_pledge
from avow.client.client import connect

FACES = [face for _, faces in MODULES.values() for face in faces]
PLACES = {"blocking": blocking, "blocking_channels": blocking_channels, "blocking_pledge": blocking_pledge}
PAIRS = [(face, getattr(PLACES[module], face.name)) for module, (_, faces) in MODULES.items() for face in faces]


def public(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(kind):
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def shape(method: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


def test_the_generated_modules_are_up_to_date() -> None:
    assert blocking_client.main(["--check"]) == 0


def test_an_outdated_module_is_reported_and_then_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text((blocking_client.FOLDER / f"{name}.py").read_text())
    stale = tmp_path / "blocking_pledge.py"
    stale.write_text(stale.read_text().replace("def topic", "def subject"))
    assert blocking_client.main(["--check", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "blocking_pledge.py is out of date\n"
    assert blocking_client.main(["--folder", str(tmp_path)]) == 0
    assert stale.read_text() == (blocking_client.FOLDER / "blocking_pledge.py").read_text()


@pytest.mark.parametrize(("face", "made"), PAIRS, ids=[face.name for face in FACES])
def test_every_public_method_has_a_blocking_one_with_the_same_parameters(face: Face, made: type) -> None:
    """Compared by introspection, not with the generator's own parser."""
    names = [name for name, _ in public(face.source) if name not in face.excluded]
    assert names
    for name, method in public(face.source):
        if name in face.excluded:
            assert not hasattr(made, name), f"{face.name}.{name} is said to be left out"
            continue
        other = inspect.getattr_static(made, name)
        assert isinstance(other, property) == isinstance(method, property), name
        if not isinstance(method, property):
            assert shape(getattr(made, name)) == shape(method), name
            assert not inspect.iscoroutinefunction(inspect.unwrap(getattr(made, name))), name


@pytest.mark.parametrize(("face", "made"), PAIRS, ids=[face.name for face in FACES])
def test_every_public_attribute_has_a_property(face: Face, made: type) -> None:
    for name, member in members(face.source).items():
        if member.node is None:
            assert isinstance(inspect.getattr_static(made, name), property), name


def test_excluded_methods_exist_in_the_async_client() -> None:
    for face in FACES:
        assert set(face.excluded) <= set(members(face.source)), face.name


def test_connecting_takes_the_same_parameters() -> None:
    assert shape(blocking.connect_blocking) == shape(connect)


# ------------------------------------------------------------- the generator, on classes with a mistake


def face_of(source: str, handwritten: str = "", *, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Face:
    """A blocking class generated from a module that is written for the test."""
    path = folder / "example.py"
    path.write_text(textwrap.dedent(source) + "\n\n" + textwrap.dedent(handwritten))
    spec = spec_from_file_location("avow.example", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "avow.example", module)
    spec.loader.exec_module(module)
    return replace(TRANSACTION, source=module.Example, handwritten=getattr(module, "Handwritten", None), excluded={})


def test_a_handwritten_method_with_other_parameters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        class Example:
            async def take(self, lane: int, *, count: int = 1) -> None: ...
    """
    handwritten = """
        class Handwritten:
            def take(self, lane: int, *, count: int = 2) -> None: ...
    """
    face = face_of(source, handwritten, folder=tmp_path, monkeypatch=monkeypatch)
    with pytest.raises(Disagreement, match=r"Handwritten\.take\(self, lane: int, \*, count: int=2\)"):
        list(methods(face))


def test_an_attribute_without_an_annotation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        class Example:
            def __init__(self, lane: int) -> None:
                self.lane = lane + 1
    """
    face = face_of(source, folder=tmp_path, monkeypatch=monkeypatch)
    with pytest.raises(Disagreement, match=r"Example\.lane has no annotation"):
        list(methods(face))


def test_async_types_become_blocking_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '''
        from __future__ import annotations

        class Example:
            def __init__(self, name: str) -> None:
                self.name = name

            async def work(self, do: Callable[[Any], Awaitable[Any]]) -> list[Done]:
                """`await example.work(do)`, or `async with example`."""

            def begin(self) -> asyncio.Future[Queue]: ...
    '''
    face = face_of(source, folder=tmp_path, monkeypatch=monkeypatch)
    name, work, begin = (text for _, text in methods(face))
    assert name == "    @property\n    def name(self) -> str:\n        return self._transaction.name\n"
    assert work == (
        "    def work(self, do: Callable[[Any], Any]) -> list[Done]:\n"
        '        """`example.work(do)`, or `with example`."""\n'
        "        return self._thread.run(self._transaction.work(do))\n"
    )
    assert begin.startswith("    def begin(self) -> Future[BlockingQueue]:\n")
