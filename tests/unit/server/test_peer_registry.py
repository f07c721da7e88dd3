from pathlib import Path

import pytest

from avow.errors import FolderUnusable, PeerRemoved, StorageDamaged
from avow.server.peer_registry import KnownPeer, PeerRegistry
from avow.storage.files import DiskFiles

ME, OTHER = b"m" * 16, b"o" * 16


def founded(path: Path) -> PeerRegistry:
    registry = PeerRegistry(DiskFiles(path))
    registry.begin(1, {1: KnownPeer(1, "127.0.0.1:1", ME), 2: KnownPeer(2, "127.0.0.1:2")}, (1, 2))
    return registry


def test_a_founder_is_remembered_by_its_first_identity(tmp_path: Path) -> None:
    founded(tmp_path).meet(2, OTHER)
    again = PeerRegistry(DiskFiles(tmp_path))
    assert (again.number, again.founders, again.peers[2].identity) == (1, (1, 2), OTHER)
    again.meet(2, OTHER)
    with pytest.raises(FolderUnusable, match="may not vote under this number"):
        again.meet(2, b"x" * 16)


@pytest.mark.parametrize("name", ["peers", "peers-copy"])
def test_an_old_copy_of_one_file_is_not_believed(tmp_path: Path, name: str) -> None:
    registry = founded(tmp_path)
    old = (tmp_path / name).read_bytes()
    registry.meet(2, OTHER)
    (tmp_path / name).write_bytes(old)
    assert PeerRegistry(DiskFiles(tmp_path)).peers[2].identity == OTHER
    assert (tmp_path / "peers").read_bytes() == (tmp_path / "peers-copy").read_bytes()


def test_unknown_peers_and_peers_that_left_are_refused(tmp_path: Path) -> None:
    registry = founded(tmp_path)
    with pytest.raises(FolderUnusable, match="must join"):
        registry.meet(7, OTHER)
    assert registry.learn(KnownPeer(2, "127.0.0.1:2", OTHER, gone=True))
    with pytest.raises(PeerRemoved, match="was removed from the cluster"):
        registry.meet(2, OTHER)
    assert not registry.learn(KnownPeer(2, "127.0.0.1:2", OTHER, gone=True))


def test_one_damaged_page_is_restored_from_its_copy_and_two_are_damage(tmp_path: Path) -> None:
    founded(tmp_path)
    (tmp_path / "peers").write_bytes(b"garbage")
    again = PeerRegistry(DiskFiles(tmp_path))
    assert (again.number, [flaw.file for flaw in again.damage]) == (1, ["peers"])
    assert PeerRegistry(DiskFiles(tmp_path)).damage == []
    for name in ("peers", "peers-copy"):
        (tmp_path / name).write_bytes(b"garbage")
    with pytest.raises(StorageDamaged):
        PeerRegistry(DiskFiles(tmp_path))


def test_a_release_before_levels_refuses_the_folder_once_the_level_was_raised(tmp_path: Path) -> None:
    registry = PeerRegistry(DiskFiles(tmp_path))
    registry.begin(3, {3: KnownPeer(3, "127.0.0.1:3", ME)}, ())
    magics = [(tmp_path / "peers").read_bytes()[:4]]
    registry.raise_to(2)
    magics.append((tmp_path / "peers").read_bytes()[:4])
    assert magics == [b"AVpb", b"AVpl"]
    assert PeerRegistry(DiskFiles(tmp_path)).level == 2
