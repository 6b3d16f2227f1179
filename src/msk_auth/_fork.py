"""What a forked child must not share with its parent is renewed here, and nowhere else.

A child has one thread, a copy of the parent's memory, and the same open sockets and files. So in a child:

- a lock that another thread of the parent held stays locked for good: locks are replaced, never acquired;
- a connection is the parent's: it is not used, and not closed either, which would end it for the parent;
- what was cached, collected or waited for belongs to the parent: the child starts with none of it.

Python runs the renewals before the forking call returns in the child. A program that forks in C has to call
`PyOS_AfterFork_Child`, as Python's documentation demands of it; uWSGI does so with `py-call-osafterfork = true`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

from ._failures import log_failure

# From a weak reference to an object, by its identity since objects need not be hashable, to the function that renews it.
_renewals: Final[dict[int, tuple[ref[Any], Callable[[Any], None]]]] = {}
_inherited: Final[list[object]] = []


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Have a method called in each child that is forked from now on, for as long as its object lives.

    Args:
        renew: A bound method, held weakly. Other threads were anywhere when the process forked, so it assigns new
            objects: it acquires no lock, and relies on nothing that a lock protects. Until it has returned the child
            has no other thread.
    """
    method: Any = renew
    held = ref(method.__self__, _forget)
    _renewals[id(held)] = held, method.__func__


def abandon(inherited: object) -> None:
    """Keep what belongs to the parent for as long as the child lives, so that no destructor closes it."""
    _inherited.append(inherited)


# The default outlives the names of this module, which are gone when the interpreter ends.
def _forget(held: ref[Any], renewals: dict[int, Any] = _renewals) -> None:
    renewals.pop(id(held), None)


def _renew_all() -> None:
    for held, renew in tuple(_renewals.values()):
        owner = held()
        if owner is None:
            continue
        try:
            renew(owner)
        except Exception as error:  # noqa: BLE001 - what is registered after it is renewed all the same
            log_failure(logging.ERROR, "could not be renewed after a fork", error)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)
