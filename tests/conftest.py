"""Every test of the flows runs twice: under the driver that blocks and under the one that awaits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from tests.core.support import World


@pytest.fixture(params=["sync", "async"])
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    with ExitStack() as worlds:
        yield lambda **options: worlds.enter_context(closing(World(request.param, **options)))


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
