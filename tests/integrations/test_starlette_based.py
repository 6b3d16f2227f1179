"""What the FastAPI and Starlette adapters share: how they are installed, and what they refuse without it."""

from __future__ import annotations

import pytest
from tests.contract.adapter import World
from tests.integrations.adapters import GUARDED, STARLETTE_BASED, application, send

from msk_auth.errors import ConfigurationError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STARLETTE_BASED)
def starlette_based(request: pytest.FixtureRequest) -> str:
    return request.param


class TestSetUpsThatCannotWork:
    """Each fails while starting, or at the first request, and the message has what to write instead."""

    async def test_installed_too_late(self, starlette_based: str, world: World) -> None:
        app = application(starlette_based, world)
        auth = app.state.msk_auth
        await send(app, "GET", b"/public")
        del app.state.msk_auth
        with pytest.raises(RuntimeError, match="after an application has started"):
            auth.install(app)

    async def test_a_guard_on_an_application_without_install_refuses(
        self, starlette_based: str, world: World
    ) -> None:
        app = application(starlette_based, world)
        del app.state.msk_auth
        for request_line in GUARDED:
            method, _, target = request_line.partition(" ")
            for headers in ([], world.bearer("jwt"), world.bearer("jwt_admin")):
                with pytest.raises(ConfigurationError, match=r"Call auth.install\(app\)"):
                    await send(app, method, target.encode(), headers)
