from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from avow.errors import FolderUnusable, StorageDamaged
from avow.storage.data_folder import open_folder

CLUSTER, PEER, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def test_a_new_folder_is_given_its_identity_and_opens_again(tmp_path: Path) -> None:
    open_folder(tmp_path / "data", cluster=CLUSTER, peer=PEER, create=True).close()
    folder = open_folder(tmp_path / "data", cluster=CLUSTER, peer=PEER)
    assert folder.damage == []
    folder.close()


@pytest.mark.parametrize(("cluster", "peer"), [(CLUSTER, OTHER), (OTHER, PEER)])
def test_a_folder_of_another_peer_or_cluster_is_refused_by_name(tmp_path: Path, cluster: UUID, peer: UUID) -> None:
    open_folder(tmp_path, cluster=CLUSTER, peer=PEER, create=True).close()
    with pytest.raises(FolderUnusable, match=str(PEER)):
        open_folder(tmp_path, cluster=cluster, peer=peer)
    open_folder(tmp_path, cluster=CLUSTER, peer=PEER).close()


def test_an_emptied_folder_is_refused_to_the_peer_that_had_it(tmp_path: Path) -> None:
    with pytest.raises(FolderUnusable, match="must not vote again"):
        open_folder(tmp_path, cluster=CLUSTER, peer=PEER)


def test_a_folder_with_files_but_no_identity_is_not_mistaken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-a").write_bytes(b"something")
    with pytest.raises(FolderUnusable):
        open_folder(tmp_path, cluster=CLUSTER, peer=PEER, create=True)
    assert (tmp_path / "checkpoint-a").read_bytes() == b"something"


def test_a_missing_folder_is_refused_unless_a_new_one_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FolderUnusable, match="does not exist"):
        open_folder(tmp_path / "missing", cluster=CLUSTER, peer=PEER)


def test_a_flipped_bit_in_one_identity_file_is_reported_and_the_copy_used(tmp_path: Path) -> None:
    open_folder(tmp_path, cluster=CLUSTER, peer=PEER, create=True).close()
    sound = (tmp_path / "identity").read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "identity").write_bytes(damaged)
        folder = open_folder(tmp_path, cluster=CLUSTER, peer=PEER)
        assert [flaw.file for flaw in folder.damage] == ["identity"]
        folder.close()
        assert (tmp_path / "identity").read_bytes() == sound
    (tmp_path / "identity").unlink()
    folder = open_folder(tmp_path, cluster=CLUSTER, peer=PEER)
    assert [flaw.found for flaw in folder.damage] == ["no such file"]
    folder.close()
    for name in ("identity", "identity-copy"):
        (tmp_path / name).write_bytes(b"short")
    with pytest.raises(StorageDamaged):
        open_folder(tmp_path, cluster=CLUSTER, peer=PEER)


def test_a_folder_in_use_is_refused_until_the_other_process_ends(tmp_path: Path) -> None:
    open_folder(tmp_path, cluster=CLUSTER, peer=PEER, create=True).close()
    script = (
        "import sys; from pathlib import Path; from uuid import UUID\n"
        "from avow.storage.data_folder import open_folder\n"
        "folder = open_folder(Path(sys.argv[1]), cluster=UUID(int=1), peer=UUID(int=2))\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(FolderUnusable, match="another process"):
            open_folder(tmp_path, cluster=CLUSTER, peer=PEER)
        other.kill()
    open_folder(tmp_path, cluster=CLUSTER, peer=PEER).close()
