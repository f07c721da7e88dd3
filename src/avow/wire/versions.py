"""The versions of the protocol: what may be sent between two peers, and what may stand in a replicated log.

There is one sequence of numbers for both, because a release that can read a frame or an entry can do so everywhere:

    version   adds
    1         everything before versions were counted
    2         the entry `level`; the home lane of a stage, the steps of a decision, and both in a lane's snapshot;
              the frames `Welcome`, `Alive` and `LinkRefused`; quiet lanes: an idle two-phase lane sends no heartbeats
              (`replication.two_phase.core`)

Two rules decide when something new is used:

    a frame                a Hello carries the oldest and the newest version of its sender. On a link, frames up to the
                           lower of the two newest versions are sent (`common`)
    an entry, a field      stays in logs and snapshots, so every peer must be able to read it. It is written only once
    in an entry or a       the cluster's level, an entry of the metadata lane, has reached its version. An operator
    snapshot               raises the level after the last peer was upgraded (`avow upgrade finish`); it never falls

A new cluster starts at the newest level. Until the level is raised, every peer can be rolled back. Afterwards a peer of
an older release is refused when it says Hello.

A frame or an entry of a kind that this release does not know is not stored, not answered and reported once for each
lane: for that lane the link seems to lose it. Other lanes and the link are not affected.
"""

from __future__ import annotations

from typing import Final

from avow.errors import FolderUnusable

FIRST: Final = 1
OLDEST: Final = 1
NEWEST: Final = 2
ALIVE: Final = 2  # the version that added the frames `Alive` and `LinkRefused`
WELCOME: Final = 2  # the version that added the frame `Welcome`
QUIET_LANES: Final = 2


def common(oldest: int, newest: int, *, level: int) -> int:
    """The version of a link to a peer that reads these versions. Raises FolderUnusable if there is none."""
    if newest < OLDEST or oldest > NEWEST:
        raise FolderUnusable(
            f"it uses versions {oldest} to {newest} of the protocol and this peer {OLDEST} to {NEWEST}; upgrade the "
            "older of the two"
        )
    if newest < level:
        raise FolderUnusable(
            f"it uses versions up to {newest} of the protocol and this cluster was raised to {level}; start that peer "
            "with a newer release"
        )
    return min(newest, NEWEST)
