"""The steps of a commit: kill -9 after each of them, then a commit by the next driver."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.unit.spark.table_rows import append, archive, rows, stage, versions

from avow.errors import StorageDamaged, Unknown
from avow.spark.tables import parquet
from avow.spark.tables.parquet import ParquetStore
from avow.spark.tables.store import Staged
from avow.spark.tables.version_ranges import archived_ends


def parquet_store(folder: Path) -> ParquetStore:
    store = archive("parquet", folder)
    assert isinstance(store, ParquetStore)
    return store


def staged_halves(store: ParquetStore, *, version: int) -> list[Staged]:
    first = 10 * version + 1
    halves = (rows(first, first + 4), rows(first + 5, first + 9))
    return [each for half in halves for each in stage(store, half, version=version)]


def killed_after(store: ParquetStore, staged: list[Staged], *, version: int, steps: int) -> bool:
    """A child process commits and is killed after that many steps; False if it finished."""
    child = os.fork()
    if child == 0:
        walk = store.commit_steps(staged, app_id="query", version=version)
        for _ in zip(range(steps), walk, strict=False):
            pass
        if steps == 0 or next(walk, None) is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def plainly_read(folder: Path) -> list[int]:
    """Reads like any reader of Parquet folders, which ignores names that begin with _ or a dot."""
    found: list[int] = ds.dataset(folder, format="parquet", partitioning="hive").to_table().column("offset").to_pylist()
    return sorted(found)


def commits_cut_short(folder: Path) -> list[tuple[ParquetStore, Path]]:
    """A table for each number of steps after which the commit of batch 1 can be killed."""
    tables: list[tuple[ParquetStore, Path]] = []
    for steps in range(100):
        place = folder / str(steps)
        store = parquet_store(place)
        append(store, rows(1, 10), version=0)
        if not killed_after(store, staged_halves(store, version=1), version=1, steps=steps):
            return tables
        tables.append((store, place))
    raise AssertionError("a commit has fewer steps")


def test_after_a_kill_at_any_step_a_replay_completes_the_batch_once(tmp_path: Path) -> None:
    tables = commits_cut_short(tmp_path)
    assert len(tables) > 5
    for store, place in tables:
        before = set(plainly_read(place))
        assert before <= set(range(1, 21))
        store.commit(staged_halves(store, version=1), app_id="query", version=1)
        assert versions(store) == plainly_read(place) == list(range(1, 21))
        assert archived_ends(store.ranges()) == {("orders", 0): 20}
        append(store, rows(21, 30), version=2)
        assert versions(store) == plainly_read(place) == list(range(1, 31))


def test_readers_after_a_kill_see_the_whole_batch_or_nothing_of_it(tmp_path: Path) -> None:
    seen = []
    for store, place in commits_cut_short(tmp_path):
        assert versions(store) in (list(range(1, 11)), list(range(1, 21)))
        assert versions(store) == plainly_read(place)
        seen.append(store.count())
    assert sorted(seen) == seen, "what was visible once stays visible"
    assert {10, 20} == set(seen)


def test_a_later_batch_finishes_a_killed_commit(tmp_path: Path) -> None:
    for store, place in commits_cut_short(tmp_path):
        before = store.committed("query")
        append(store, rows(21, 30), version=2)
        first = list(range(1, 21)) if before == 1 else list(range(1, 11))
        assert versions(store) == plainly_read(place) == first + list(range(21, 31))


def test_leftovers_of_attempts_are_removed_by_the_next_commit(tmp_path: Path) -> None:
    store = parquet_store(tmp_path)
    for version in range(3):
        staged_halves(store, version=version)
        assert store.commit(staged_halves(store, version=version), app_id="query", version=version)
    left = list((tmp_path / "_avow" / "staged").rglob("*.parquet"))
    assert {path.relative_to(tmp_path).parts[3] for path in left} == {f"{2:020d}"}
    assert not list((tmp_path / "_avow").rglob("*.tmp"))


def test_merging_manifests_survives_a_kill_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MANIFESTS_MAX", 4)
    store = parquet_store(tmp_path)
    version, steps = 0, 0
    while version < 24:
        cut = killed_after(store, staged_halves(store, version=version), version=version, steps=steps % 12)
        if cut:
            store.commit(staged_halves(store, version=version), app_id="query", version=version)
        steps += 1
        version += 1
        assert versions(store) == list(range(1, 10 * version + 1))
    assert not append(store, rows(1, 1), version=3)
    assert len(list((tmp_path / "_avow" / "committed").rglob("*.json"))) < 10


def test_a_commit_whose_files_were_removed_is_not_half_done(tmp_path: Path) -> None:
    store = parquet_store(tmp_path)
    late = staged_halves(store, version=1)
    append(store, rows(1, 10), version=0)
    for each in late[1:]:
        (tmp_path / "_avow" / "staged" / "app-query" / f"{1:020d}" / each.place).unlink()
    with pytest.raises(Unknown, match="no longer exists"):
        store.commit(late, app_id="query", version=1)
    assert versions(store) == list(range(1, 11))
    assert store.committed("query") == 0


def test_a_missing_committed_file_is_reported(tmp_path: Path) -> None:
    store = parquet_store(tmp_path)
    append(store, rows(1, 10), version=0)
    (lost,) = store.files()
    os.unlink(lost)
    with pytest.raises(StorageDamaged, match="10 rows"):
        store.count()


def test_an_unreadable_manifest_is_reported(tmp_path: Path) -> None:
    store = parquet_store(tmp_path)
    append(store, rows(1, 10), version=0)
    (manifest,) = (tmp_path / "_avow" / "committed").rglob("*.json")
    manifest.write_bytes(b"{")
    with pytest.raises(StorageDamaged, match="a manifest"):
        store.count()
