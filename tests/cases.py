"""Several cases in one test: for cases that share a line of the code, a test for each would cost more than they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from msk_auth.errors import Problem


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Name the case in the report of what fails inside."""
    try:
        yield
    except BaseException as error:  # a missing exception is none of pytest's `Exception`s
        error.add_note(f"The case is {', '.join(map(ascii, values))}.")
        raise


def refused_with(*codes: str) -> pytest.RaisesExc[Problem]:
    """Expects a problem with one of these codes in the block: `with refused_with("key_revoked"):`."""
    return pytest.RaisesExc(Problem, check=lambda problem: problem.code in codes)


def code_of(outcome: object) -> str:
    """The code of an outcome that must be a problem."""
    assert isinstance(outcome, Problem)
    return outcome.code
