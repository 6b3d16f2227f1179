"""Tests of the flows: what awaits runs under both drivers, what the core decides under the one that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tests.core.support import MakeWorld, World


@pytest.fixture(params=["sync", "async"])
def make_world(request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    """Makes worlds of each driver."""
    with ExitStack() as worlds:
        yield lambda **options: worlds.enter_context(closing(World(request.param, **options)))


@pytest.fixture
def world() -> World:
    """One that blocks. The generated twin of the code is the same, so a decision is tested once."""
    return World("sync")
