"""What goes on after a request was admitted ends in every adapter (G2), and verifying again gives the present answer."""

from __future__ import annotations

import pytest
from tests.contract.adapter import AdapterDriver, StreamContract, World
from tests.integrations.adapters import ADAPTERS, Driver

from msk_auth.testing import BackgroundLoop


class TestAdapters(StreamContract):
    @pytest.fixture(scope="class", params=ADAPTERS)
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        return Driver(loop, ADAPTERS[request.param](world.authenticator), stays=True)


class TestLateAdaptersOfBlockingAuthenticators(StreamContract):
    @pytest.fixture(scope="class", params=ADAPTERS)
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        return Driver(loop, ADAPTERS[request.param](world.blocking, late=True), stays=True)
