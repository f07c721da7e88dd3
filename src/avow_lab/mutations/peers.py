"""Rules of the product to break one at a time in real processes: the peers of a campaign, or its clients.

Each mutation replaces one object before anything runs. The campaign has to notice it by what clients see. That proves
two things: the rule is needed, and the campaign would find its loss.

    avow prove --mutation no-mark --faults damage --seed 1      # must end with status 1
    python -m avow_lab.campaigns.peers.mutants                  # each of them, with the fault that finds it

What only a power cut can show (a folder whose parent was not synced) is not here, because the kill of a process loses
nothing: `tests/contract/storage/test_first_start_powercut.py` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from avow.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ProcessMutation:
    """`place`: module:attribute of the object. `broken` makes its replacement from it. `clients`: the campaign's own
    process runs the mutation, and not the peers."""

    name: str
    what: str
    place: str
    broken: Callable[[Any], Any]
    clients: bool = False


def break_peer(name: str) -> None:
    """In a process that becomes a peer, before it imports anything else."""
    mutation = find(name)
    if not mutation.clients:
        _replace(mutation)


@contextmanager
def broken_clients(name: str) -> Iterator[None]:
    """While the block runs, the clients of this process have the mutation. No name: none has."""
    if not name or not (mutation := find(name)).clients:
        yield
        return
    owner, attribute, shipped = _replace(mutation)
    try:
        yield
    finally:
        setattr(owner, attribute, shipped)


def find(name: str) -> ProcessMutation:
    for mutation in PROCESS_MUTATIONS:
        if mutation.name == name:
            return mutation
    known = ", ".join(mutation.name for mutation in PROCESS_MUTATIONS)
    raise InvalidRequest(f"there is no mutation {name!r}; there are {known}. Nothing was started")


def _replace(mutation: ProcessMutation) -> tuple[Any, str, Any]:
    module, _, path = mutation.place.partition(":")
    owner: Any = import_module(module)
    *above, attribute = path.split(".")
    for name in above:
        owner = getattr(owner, name)
    shipped = getattr(owner, attribute)
    setattr(owner, attribute, mutation.broken(shipped))
    return owner, attribute, shipped


# ---------------------------------------------------------------------- the replacements


def _mark_of_nothing(read_mark: Any) -> Any:
    """The mark says that nothing was synced; its promises and its run count."""

    def read(*given: Any) -> Any:
        mark = read_mark(*given)
        return None if mark is None else mark._replace(lsn=0, segment=0, offset=0)

    return read


def _believe_strangers(handle_end: Any) -> Any:
    """An End before a Hello says that nothing arrived which is not known to have arrived."""
    from avow.channel.protocol.frames import EndCode
    from avow.channel.protocol.states import Link

    def handle(core: Any, end: Any) -> None:
        core.out.final = core.out.final or (core.link is not Link.UP and end.code != EndCode.FENCED)
        handle_end(core, end)

    return handle


def _always_young(_age_since: Any) -> Any:
    return lambda *_: 0


def _expire_alone(shipped: Any) -> Any:
    from avow_lab.mutations.two_phase import TWO_PHASE_ROLES

    [roles] = [mutation.roles for mutation in TWO_PHASE_ROLES if mutation.name == "a lane expires by itself"]
    return replace(shipped, lane=roles)


def _wait_for_nobody(founding: Any) -> Any:
    def begin(**given: Any) -> Any:
        begun = founding(**given)
        begun.waiting_for = []
        return begun

    return begin


PROCESS_MUTATIONS: Final = (
    ProcessMutation(
        "no-mark",
        "a peer does not believe its mark: a log that lost its end counts as a short one",
        "avow.storage.recovery:read_mark",
        _mark_of_nothing,
    ),
    ProcessMutation(
        "strangers-end",
        "a producer takes an End that came before a Hello for the channel's last word",
        "avow.channel.protocol.core:Core._handle_end",
        _believe_strangers,
        clients=True,
    ),
    ProcessMutation(
        "no-age",
        "a repetition counts as a first attempt, whatever its age is",
        "avow.server.http.write_body:age_since",
        _always_young,
    ),
    ProcessMutation(
        "expires-alone",
        "a lane drops what is past its deadline there, although another lane decides",
        "avow.server.process:SHIPPED",
        _expire_alone,
    ),
    ProcessMutation(
        "founds-alone",
        "a founder with a new folder waits for no other founder",
        "avow.server.process:Founding",
        _wait_for_nobody,
    ),
)
MUTATION_NAMES: Final = tuple(mutation.name for mutation in PROCESS_MUTATIONS)
