"""Renews, in a forked child, objects that it must not share with its parent.

A child has one thread, a copy of the parent's memory, and the same open sockets and files. So in a child:

- a lock that another thread of the parent held stays locked for ever: locks are replaced, never acquired;
- a connection belongs to the parent: the child must neither use nor close it, which would close it for the parent;
- caches, collected data and waiting requests belong to the parent: the child starts without them.

Python runs the renewals before the forking call returns in the child. A program that forks in C must call
`PyOS_AfterFork_Child` (see Python's documentation); uWSGI does so with `py-call-osafterfork = true`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

from ._failures import log_failure

# By the identity of a weak reference, since the objects need not be hashable: the reference, and the function that renews.
_renewals: Final[dict[int, tuple[ref[Any], Callable[[Any], None]]]] = {}
_inherited: Final[list[object]] = []


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Call a method in each child that is forked later, as long as its object lives.

    Args:
        renew: A bound method, referenced weakly. Other threads may have been in the middle of any operation when the process
            forked. So the method must assign new objects, acquire no lock, and read nothing that a lock protects. The child
            has no other thread until the method returns.
    """
    method: Any = renew
    held = ref(method.__self__, _forget)
    _renewals[id(held)] = held, method.__func__


def abandon(inherited: object) -> None:
    """Keep an object of the parent as long as the child lives, so that no destructor closes it."""
    _inherited.append(inherited)


# The default argument still exists at the interpreter's end, when this module's names are gone.
def _forget(held: ref[Any], renewals: dict[int, Any] = _renewals) -> None:
    renewals.pop(id(held), None)


def _renew_all() -> None:
    for held, renew in tuple(_renewals.values()):
        owner = held()
        if owner is None:
            continue
        try:
            renew(owner)
        except Exception as error:  # noqa: BLE001 - the others are renewed all the same
            log_failure(logging.ERROR, "could not renew an object after a fork", error)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)
