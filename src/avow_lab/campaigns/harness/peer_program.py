"""The program of a campaign's peers: `avow serve`, and what only a laboratory wants.

    python -m avow_lab.campaigns.harness.peer_program [--mutation NAME] <flags of avow serve>

The signal `stall_signal(n)` stops the event loop for n seconds, as a long computation in it would. Unlike with SIGSTOP
the other threads go on: the log is synced, and a client's connection is accepted and not answered.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Final

PROGRAM: Final = ("-m", "avow_lab.campaigns.harness.peer_program")
STALLS_S: Final = (1, 2, 3, 4)


def stall_signal(seconds: int) -> int:
    return signal.SIGRTMIN + seconds


def program(mutation: str = "") -> tuple[str, ...]:
    """The words after the interpreter."""
    return (*PROGRAM, "--mutation", mutation) if mutation else PROGRAM


def main() -> None:
    for seconds in STALLS_S:
        signal.signal(stall_signal(seconds), _stall)
    arguments = sys.argv[1:]
    if arguments[:1] == ["--mutation"]:
        from avow_lab.mutations.peers import break_peer

        break_peer(arguments[1])
        arguments = arguments[2:]
    sys.argv[1:] = ["serve", *arguments]
    from avow.cli.main import main as avow

    avow()


def _stall(number: int, _frame: object) -> None:
    """Python runs this in the main thread, which is that of the event loop."""
    time.sleep(number - signal.SIGRTMIN)


if __name__ == "__main__":
    main()
