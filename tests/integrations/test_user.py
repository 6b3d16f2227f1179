"""The application's user: loaded once per request, in the request's own session, and never None."""

# No `from __future__ import annotations`: FastAPI and Litestar read the annotations of local names.

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from tests.contract.adapter import User, World, make_world
from tests.integrations.adapters import ADAPTERS, send

from msk_auth import Principal
from msk_auth.errors import ConfigurationError, PermissionDenied

pytestmark = pytest.mark.anyio


class Account:
    """The application's own class of users, as mutable as one of an ORM."""

    def __init__(self, name: str) -> None:
        self.name = name


class Accounts:
    """Where the application keeps its users.

    Attributes:
        rows: The accounts by id.
        loaded: Each id that was asked for.
    """

    def __init__(self) -> None:
        self.rows = {"alice": Account("Alice of the application")}
        self.loaded: list[str] = []

    def get(self, owner_id: str) -> Account | None:
        self.loaded.append(owner_id)
        if owner_id == "root":
            raise PermissionDenied(["be a person"])
        return self.rows.get(owner_id)

    async def get_async(self, owner_id: str) -> Account | None:
        return self.get(owner_id)


def fastapi_app(world: World, accounts: Accounts, *, awaits: bool) -> Any:
    from fastapi import Depends, FastAPI

    from msk_auth.integrations.fastapi import FastAPIAuth

    auth = FastAPIAuth(world.authenticator if awaits else world.blocking)
    app = auth.install(FastAPI())

    def session() -> Accounts:
        return accounts

    Session = Annotated[Accounts, Depends(session)]  # noqa: N806 - it is a type
    OwnerId = Annotated[str, auth.owner_id]  # noqa: N806 - it is a type

    async def load(accounts: Session, owner_id: OwnerId) -> Account | None:
        return accounts.get(owner_id)

    def load_blocking(accounts: Session, owner_id: OwnerId) -> Account | None:
        return accounts.get(owner_id)

    load_user = load if awaits else load_blocking
    CurrentUser = Annotated[Account, auth.user(load_user=load_user)]  # noqa: N806 - it is a type
    Runner = Annotated[Account, auth.user("tasks:run", load_user=load_user)]  # noqa: N806

    def twice(user: CurrentUser) -> Account:
        return user

    @app.get("/me")
    def me(user: CurrentUser, again: Annotated[Account, Depends(twice)]) -> dict[str, Any]:
        return {"name": user.name, "same": again is user}

    @app.get("/run")
    def run(user: Runner) -> dict[str, Any]:
        return {"name": user.name}

    return app


def starlette_app(world: World, accounts: Accounts, *, awaits: bool) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from msk_auth.integrations.starlette import StarletteAuth

    auth = StarletteAuth(world.authenticator if awaits else world.blocking)

    @auth.user
    async def current_user(owner_id: str, request: Request) -> Account | None:
        return accounts.get(owner_id)

    @auth.user
    def current_user_blocking(owner_id: str, request: Request) -> Account | None:
        return accounts.get(owner_id)

    @auth.require()
    async def me(request: Request) -> Response:
        user = await current_user(request)
        return JSONResponse({"name": user.name, "same": await current_user(request) is user})

    @auth.require()
    def me_blocking(request: Request) -> Response:
        user = current_user_blocking(request)
        return JSONResponse({"name": user.name, "same": current_user_blocking(request) is user})

    me = me if awaits else me_blocking
    routes = [Route("/me", me), Route("/run", auth.require("tasks:run")(me))]
    return auth.install(Starlette(routes=routes))


def litestar_app(world: World, accounts: Accounts, *, awaits: bool) -> Any:
    from litestar import Litestar, get
    from litestar.di import Provide
    from tests.integrations.litestar_di import NamedDependency

    from msk_auth.integrations.litestar import LitestarAuth

    auth = LitestarAuth(world.authenticator if awaits else world.blocking)

    async def session() -> Accounts:
        return accounts

    async def load(
        principal: NamedDependency[Principal[User]], session: NamedDependency[Accounts]
    ) -> Account | None:
        return session.get(principal.owner.id)

    def load_blocking(
        principal: NamedDependency[Principal[User]], session: NamedDependency[Accounts]
    ) -> Account | None:
        return session.get(principal.owner.id)

    async def twice(user: NamedDependency[Account]) -> Account:
        return user

    @get("/me", guards=[auth.require()])
    async def me(user: NamedDependency[Account], again: NamedDependency[Account]) -> dict[str, Any]:
        return {"name": user.name, "same": again is user}

    @get("/run", guards=[auth.require("tasks:run")])
    async def run(user: NamedDependency[Account]) -> dict[str, Any]:
        return {"name": user.name}

    return Litestar(
        [me, run],
        plugins=[auth],
        dependencies={
            "session": Provide(session),
            "user": auth.user(load if awaits else load_blocking),
            "again": Provide(twice),
        },
        logging_config=None,
    )


def flask_app(world: World, accounts: Accounts, *, awaits: bool) -> Any:
    from flask import Flask
    from tests.integrations.flask_app import WsgiBridge

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    auth = FlaskAuth(world.blocking, app)
    current_user = auth.user(accounts.get)

    @app.get("/me")
    @auth.require()
    def me() -> dict[str, Any]:
        user = current_user()
        return {"name": user.name, "same": current_user() is user}

    @app.get("/run")
    @auth.require("tasks:run")
    async def run() -> dict[str, Any]:
        return {"name": current_user().name}

    return WsgiBridge(app)


MAKE: dict[str, Callable[..., Any]] = {
    "fastapi": fastapi_app,
    "starlette": starlette_app,
    "litestar": litestar_app,
    "flask": flask_app,
}


class Site:
    def __init__(self, adapter: str, *, awaits: bool) -> None:
        self.world = make_world()
        self.accounts = Accounts()
        self.app = MAKE[adapter](self.world, self.accounts, awaits=awaits)

    async def get(self, path: str, credential: str | None) -> Any:
        headers = [] if credential is None else self.world.bearer(credential)
        return await send(self.app, "GET", path.encode(), headers)


@pytest.fixture(
    # Flask is synchronous.
    params=[
        (name, awaits) for name in ADAPTERS for awaits in (True, False) if awaits or name != "flask"
    ],
    ids=lambda param: f"{param[0]} {'awaiting' if param[1] else 'blocking'}",
)
def site(request: pytest.FixtureRequest) -> Site:
    name, awaits = request.param
    return Site(name, awaits=awaits)


@pytest.mark.parametrize("credential", ["key", "jwt"])
async def test_it_is_loaded_once_per_request(site: Site, credential: str) -> None:
    for n in range(1, 3):
        reply = await site.get("/me", credential)
        assert reply.json == {"name": "Alice of the application", "same": True}
        assert site.accounts.loaded == ["alice"] * n
    reply = await site.get("/run", credential)
    assert (reply.status, reply.json["name"]) == (200, "Alice of the application")


@pytest.mark.parametrize(
    ("credential", "code", "detail"),
    [
        ("key", "owner_disabled", "The owner of this key has no user."),
        ("jwt", "token_revoked", "This login has no user."),
    ],
)
async def test_one_who_is_gone_is_refused_as_a_gone_owner(
    site: Site, credential: str, code: str, detail: str
) -> None:
    site.accounts.rows.clear()
    reply = await site.get("/me", credential)
    assert (reply.status, reply.json["code"], reply.json["detail"]) == (401, code, detail)
    assert reply.header("www-authenticate") == 'Bearer realm="api", error="invalid_token"'
    site.accounts.rows["alice"] = Account("Alice again")
    assert (await site.get("/me", credential)).json["name"] == "Alice again"


async def test_what_the_application_raises_is_its_answer(site: Site) -> None:
    reply = await site.get("/me", "jwt_admin")
    assert (reply.status, reply.json["code"]) == (403, "permission_denied")


async def test_nobody_is_loaded_for_a_refused_request(site: Site) -> None:
    for credential in (None, "key_revoked", "key_disabled"):
        assert (await site.get("/me", credential)).status == 401
    for credential, status in ((None, 401), ("key_bob", 403), ("key_read", 403)):
        assert (await site.get("/run", credential)).status == status
    assert site.accounts.loaded == []


class TestLoadersThatCannotWork:
    @pytest.mark.skipif("fastapi" not in ADAPTERS, reason="for FastAPI")
    def test_fastapi_would_read_the_id_from_the_query(self) -> None:
        from msk_auth.integrations.fastapi import FastAPIAuth

        auth = FastAPIAuth(make_world().blocking)

        def load(owner_id: str) -> None: ...

        def load_with_principal(
            owner_id: str, principal: Annotated[Principal[User], auth.principal]
        ) -> None: ...

        for function in (load, load_with_principal, lambda: None):
            with pytest.raises(ConfigurationError, match=r"Annotated\[str, auth.owner_id\]"):
                auth.user(load_user=function)

        def load_by_principal(principal: Annotated[Principal[User], auth.principal]) -> None: ...

        auth.user(load_user=load_by_principal)
        with pytest.raises(ConfigurationError, match="'a b' is not a permission"):
            auth.user("a b")

    @pytest.mark.skipif("litestar" not in ADAPTERS, reason="for Litestar")
    def test_litestar_would_read_the_id_from_the_query(self) -> None:
        from msk_auth.integrations.litestar import LitestarAuth

        async def load(owner_id: str) -> None: ...

        with pytest.raises(ConfigurationError, match=r"`principal: Principal\[…\]`"):
            LitestarAuth(make_world().blocking).user(load)

    @pytest.mark.skipif("flask" not in ADAPTERS, reason="for Flask")
    def test_flask_does_not_await(self) -> None:
        from msk_auth.integrations.flask import FlaskAuth

        loads: Callable[[str], Awaitable[Account | None]] = Accounts().get_async
        with pytest.raises(ConfigurationError, match="Write a plain function"):
            FlaskAuth(make_world().blocking).user(loads)

    @pytest.mark.skipif("flask" not in ADAPTERS, reason="for Flask")
    async def test_a_view_without_a_guard(self) -> None:
        from flask import Flask

        from msk_auth.integrations.flask import FlaskAuth

        app = Flask(__name__)
        auth = FlaskAuth(make_world().blocking, app)
        current_user = auth.user(Accounts().get)
        with (
            app.test_request_context("/"),
            pytest.raises(ConfigurationError, match="without a guard"),
        ):
            current_user()
