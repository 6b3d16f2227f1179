"""What goes on after a request was admitted ends in every adapter (G2), and verifying again gives the present answer."""

from __future__ import annotations

import pytest
from tests.contract.adapter import AdapterDriver, StreamContract, World
from tests.integrations.adapters import EITHER_WAY, Driver, application

from msk_auth.testing import BackgroundLoop


class TestAdapters(StreamContract):
    @pytest.fixture(scope="class", params=EITHER_WAY)
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        name, late = request.param
        return Driver(loop, application(name, world, late=late), stays=True)
