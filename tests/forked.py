"""Run something in a forked child of the test process."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A child that hangs is ended by the system. Nothing is measured by it: what hangs, hangs for good.
_HANGS_AFTER_SECONDS = 60


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns in a forked child.

    Raises:
        AssertionError: The child hung or raised.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork beside threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HANGS_AFTER_SECONDS)
        try:
            try:
                answer = (True, work())
            except BaseException as error:  # noqa: BLE001 - reported to the parent
                answer = (False, repr(error))  # type: ignore[assignment]
            os.write(writing, pickle.dumps(answer))
        finally:
            # Without the parent's `finally` blocks and exit handlers.
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pickled = pipe.read()
    os.waitpid(child, 0)
    assert pickled, "the child hung"
    succeeded, answer = pickle.loads(pickled)
    assert succeeded, answer
    result: T = answer
    return result
