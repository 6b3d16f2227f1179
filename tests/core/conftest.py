"""Every test of the flows runs twice: under the driver that blocks and under the one that awaits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from tests.core.support import World

from msk_auth import _failures
from msk_auth.core import immutability, networks


@pytest.fixture(autouse=True)
def _as_at_the_start() -> None:
    """A mistake that was logged in another test is logged again, and what is kept of classes and networks was made by no mutant."""
    _failures._log_once.cache_clear()
    immutability._is_changing_class.cache_clear()
    networks.parse_network.cache_clear()


@pytest.fixture(params=["sync", "async"])
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    with ExitStack() as worlds:
        yield lambda **options: worlds.enter_context(closing(World(request.param, **options)))


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
