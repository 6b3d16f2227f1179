"""Several cases in one test: for cases that share a line of the code, a test for each would cost more than they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Name the case in the report of what fails inside."""
    try:
        yield
    except BaseException as error:  # a missing exception is none of pytest's `Exception`s
        error.add_note(f"The case is {', '.join(map(ascii, values))}.")
        raise
