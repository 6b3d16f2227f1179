"""What goes on after a request was admitted ends in every adapter (G2), and verifying again gives the present answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.integrations.adapters import ADAPTERS, send

from msk_auth.testing import BackgroundLoop, StreamContract
from msk_auth.testing.adapter import AdapterDriver, Reply, World


class Driver:
    """Speaks raw ASGI to an application, and stays until it has answered."""

    def __init__(self, loop: BackgroundLoop, app: Any) -> None:
        self._loop = loop
        self._app = app

    def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Reply:
        answer = send(self._app, method, target, list(headers), body, stays=True)
        return self._loop.run(answer)


@pytest.fixture(scope="module")
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


class TestAdapters(StreamContract):
    @pytest.fixture(scope="class", params=ADAPTERS)
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        return Driver(loop, ADAPTERS[request.param](world.authenticator))
