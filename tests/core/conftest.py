"""Forgets what is kept for the whole process."""

from __future__ import annotations

import pytest

from msk_auth import _failures
from msk_auth.core import immutability, networks


@pytest.fixture(autouse=True)
def _as_at_the_start() -> None:
    """A mistake that was logged in another test is logged again, and what is kept of classes and networks was made by no mutant."""
    _failures._log_once.cache_clear()
    immutability._is_changing_class.cache_clear()
    networks.parse_network.cache_clear()
