"""What only FastAPI has: dependencies, its own parsing and the OpenAPI document."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import pytest

pytest.importorskip("fastapi")

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from tests.contract.adapter import Reply, Surprise, User, World
from tests.integrations.adapters import send
from tests.integrations.fastapi_app import fastapi_app
from tests.integrations.test_websockets import connect

from msk_auth import Principal, require
from msk_auth.errors import ConfigurationError, Problem, TooManyAttempts
from msk_auth.http.openapi import complete_document
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.testing import list_routes

pytestmark = pytest.mark.anyio

JSON = (b"content-type", b"application/json")


class Task(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    tags: list[int] = []


@pytest.fixture
def auth(world: World) -> FastAPIAuth[User]:
    return FastAPIAuth(world.authenticator)


@pytest.fixture
def app(auth: FastAPIAuth[User]) -> FastAPI:
    app = FastAPI()
    auth.install(app, errors="all")

    @app.post("/tasks/{task_id}", dependencies=[auth.require("tasks:run")])
    async def create(task_id: int, task: Task, limit: int = 1) -> Task:
        return task

    return app


class TestInvalidInput:
    async def post(
        self, world: World, app: FastAPI, body: bytes, target: bytes = b"/tasks/1"
    ) -> Any:
        return await send(app, "POST", target, [*world.bearer("key"), JSON], body)

    @pytest.mark.parametrize(
        ("body", "target", "fields"),
        [
            (b"{}", b"/tasks/1", ["name"]),
            (b'{"name": "a", "tags": [1, "x"]}', b"/tasks/1", ["tags.1"]),
            (b'{"name": "a", "owner": 1}', b"/tasks/1", ["owner"]),
            (b'{"name": 1}', b"/tasks/x?limit=y", ["task_id", "limit", "name"]),
            (b"[]", b"/tasks/1", [""]),
            (b"", b"/tasks/1", [""]),
            (b"{", b"/tasks/1", [""]),
            (b"[" * 100_000, b"/tasks/1", [""]),
            (b"\xff", b"/tasks/1", [""]),
            (b'{"name": ' + b"9" * 5000 + b"}", b"/tasks/1", [""]),
        ],
    )
    async def test_is_answered_with_its_fields(
        self, world: World, app: FastAPI, body: bytes, target: bytes, fields: list[str]
    ) -> None:
        reply = await self.post(world, app, body, target)
        assert (reply.status, reply.json["code"]) == (422, "input_invalid")
        assert [error["field"] for error in reply.json["errors"]] == fields
        assert reply.header("content-type") == "application/problem+json"

    async def test_does_not_fill_the_answer(self, world: World, app: FastAPI) -> None:
        body = json.dumps({"name": "a", "tags": ["x"] * 10_000}).encode()
        assert len((await self.post(world, app, body)).json["errors"]) == 50

    @pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"{}", b""])
    async def test_is_not_reported_to_unauthorized_clients(
        self, world: World, app: FastAPI, body: bytes
    ) -> None:
        refused = await send(app, "POST", b"/tasks/1", [JSON], body)
        assert (refused.status, refused.json["code"]) == (401, "credentials_missing")
        reader = await send(app, "POST", b"/tasks/1", [*world.bearer("key_read"), JSON], body)
        assert (reader.status, reader.json["code"]) == (403, "permission_denied")

    @pytest.mark.parametrize("body", [b"{", b"{}"])
    async def test_is_not_reported_where_the_guard_stands_at_an_inclusion(
        self, auth: FastAPIAuth[User], world: World, app: FastAPI, body: bytes
    ) -> None:
        inner, outer = APIRouter(prefix="/inner"), APIRouter(prefix="/outer")

        @inner.post("")
        async def create(task: Task) -> Task:
            return task

        outer.include_router(inner, dependencies=[auth.principal])
        run = auth.require("tasks:run")
        app.include_router(inner, dependencies=[run])
        app.include_router(inner, prefix="/again", dependencies=[auth.principal, run])
        app.include_router(outer, dependencies=[run])
        for target in (b"/inner", b"/again/inner", b"/outer/inner"):
            refused = await send(app, "POST", target, [JSON], body)
            assert (refused.status, refused.json["code"]) == (401, "credentials_missing")
            reader = await send(app, "POST", target, [*world.bearer("key_read"), JSON], body)
            assert (reader.status, reader.json["code"]) == (403, "permission_denied")
            scoped = await send(app, "POST", target, [*world.bearer("key_acme_run"), JSON], body)
            assert (scoped.status, scoped.json["code"]) == (422, "input_invalid")

    async def test_on_a_public_route(self, app: FastAPI) -> None:
        @app.post("/open")
        async def open_to_all(task: Task) -> Task:
            return task

        assert (await send(app, "POST", b"/open", [JSON], b"{")).status == 422

    async def test_raised_by_a_route_that_is_not_fastapi_s(self, app: FastAPI) -> None:
        async def plain(request: Request) -> None:
            raise RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": "no"}])

        app.add_route("/plain", plain)
        assert (await send(app, "GET", b"/plain")).json["code"] == "input_invalid"

    async def test_on_a_websocket(
        self, app: FastAPI, world: World, auth: FastAPIAuth[User]
    ) -> None:
        @app.websocket("/ws", dependencies=[auth.principal])
        async def ws(websocket: WebSocket, number: int) -> None: ...

        assert (await connect(app, "/ws", []))[0]["status"] == 401
        start, body = await connect(app, "/ws", world.bearer("key"))
        assert start["status"] == 422
        assert json.loads(body["body"])["errors"][0]["field"] == "number"

    async def test_with_a_guard_that_a_test_replaced(
        self, auth: FastAPIAuth[User], app: FastAPI
    ) -> None:
        app.dependency_overrides[auth.require("tasks:run").dependency] = lambda: None
        assert (await send(app, "POST", b"/tasks/1", [JSON], b"{")).status == 422
        assert (await send(app, "POST", b"/tasks/1", [JSON], b'{"name": "a"}')).status == 200


class TestHttpErrors:
    async def answer(self, app: FastAPI, error: HTTPException, cause: Any = None) -> Reply:
        @app.get("/own")
        async def own() -> None:
            raise error from cause

        return await send(app, "GET", b"/own")

    @pytest.mark.parametrize(
        ("status", "detail", "members"),
        [
            *((status, None, {}) for status in (400, 401, 403, 404, 409, 413, 415, 418, 500, 503)),
            # Older versions of Starlette cannot find a text for it.
            (499, "", {}),
            (409, "Too late", {"detail": "Too late"}),
            (409, {"since": 1}, {"context": {"since": 1}}),
        ],
    )
    async def test_are_documents_without_a_code(
        self, app: FastAPI, status: int, detail: Any, members: dict[str, Any]
    ) -> None:
        reply = await self.answer(app, HTTPException(status, detail, {"X-Hint": "1"}))
        assert reply.status == status
        title = reply.json["title"]
        assert reply.json == {"type": "about:blank", "title": title, "status": status, **members}
        assert reply.header("content-type") == "application/problem+json"
        assert reply.header("x-hint") == "1"
        assert reply.header("www-authenticate") is None

    async def test_a_challenge_of_the_application_is_its_own(self, app: FastAPI) -> None:
        challenge = {"WWW-Authenticate": 'Digest realm="theirs"'}
        reply = await self.answer(app, HTTPException(401, "Who?", challenge))
        assert (reply.status, reply.json["detail"]) == (401, "Who?")
        assert reply.header("www-authenticate") == 'Digest realm="theirs"'
        assert "code" not in reply.json

    async def test_a_400_of_the_application_is_its_own(self, app: FastAPI) -> None:
        reply = await self.answer(app, HTTPException(400, "No such date"), ValueError())
        assert (reply.json["type"], reply.json["detail"]) == ("about:blank", "No such date")

    @pytest.mark.parametrize("status", [204, 304, 307])
    async def test_a_redirect_is_no_problem(self, app: FastAPI, status: int) -> None:
        reply = await self.answer(app, HTTPException(status, headers={"X-Hint": "1"}))
        assert (reply.status, reply.body, reply.header("x-hint")) == (status, b"", "1")

    async def test_handlers_of_the_application_stay(self, auth: FastAPIAuth[User]) -> None:
        async def mine(request: Request, error: Exception) -> PlainTextResponse:
            return PlainTextResponse(type(error).__name__, 499)

        kinds: list[Any] = [Problem, StarletteHTTPException, RequestValidationError]
        app = FastAPI(exception_handlers=dict.fromkeys(kinds, mine))
        auth.install(app, errors="all")

        @app.get("/me", dependencies=[auth.principal])
        async def me(number: int) -> None: ...

        @app.get("/number")
        async def number(number: int) -> None: ...

        answered = [
            (await send(app, "GET", target)).body for target in (b"/me", b"/nowhere", b"/number")
        ]
        assert answered == [b"CredentialsMissing", b"HTTPException", b"RequestValidationError"]

    @pytest.mark.parametrize("key", [500, Exception])
    async def test_a_handler_of_the_application_for_unexpected_errors_stays(
        self, auth: FastAPIAuth[User], key: Any
    ) -> None:
        async def mine(request: Request, error: Exception) -> JSONResponse:
            return JSONResponse("mine", 500)

        app = FastAPI(exception_handlers={key: mine})
        auth.install(app, errors="all")

        @app.get("/boom")
        async def boom() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await send(app, "GET", b"/boom")
        assert app.exception_handlers[key] is mine
        assert {500, Exception} & app.exception_handlers.keys() == {key}

    async def test_a_problem_of_a_middleware_is_answered_too(
        self, world: World, app: FastAPI
    ) -> None:
        class Busy(TooManyAttempts, Surprise):
            """Swallowed by `send`, as a server does with what Starlette raises again."""

        class Throttle:
            def __init__(self, app: Any) -> None: ...

            async def __call__(self, *_: Any) -> None:
                raise Busy(7)

        app.add_middleware(Throttle)
        reply = await send(app, "GET", b"/me")
        assert (reply.status, reply.header("retry-after")) == (429, "7")


class TestGuards:
    async def test_the_same_policy_is_the_same_guard(self, auth: FastAPIAuth[User]) -> None:
        assert auth.principal is auth.require()
        assert auth.require("a", "b") is auth.require("b", "a")
        assert auth.require() is not auth.require_interactive()

    async def test_a_mounted_application_needs_its_own_install(
        self, auth: FastAPIAuth[User], world: World
    ) -> None:
        inner = FastAPI()

        @inner.get("/me", dependencies=[auth.principal])
        async def me() -> str:
            return "hello"

        outer = FastAPI()
        auth.install(outer)
        outer.mount("/inner", inner)
        with pytest.raises(ConfigurationError, match=r"Call auth.install\(app\)"):
            await send(outer, "GET", b"/inner/me", world.bearer("jwt"))
        inner.middleware_stack = None
        auth.install(inner)
        assert (await send(outer, "GET", b"/inner/me")).json["code"] == "credentials_missing"
        assert (await send(outer, "GET", b"/inner/me", world.bearer("jwt"))).status == 200

    async def test_the_guard_of_the_key_routes_cannot_be_replaced(
        self, auth: FastAPIAuth[User], app: FastAPI
    ) -> None:
        app.include_router(auth.key_routes(prefix="/api/keys"))
        for guard in (auth.require(), auth.require_interactive()):
            app.dependency_overrides[guard.dependency] = lambda: None
        for method, target in [
            ("GET", b""),
            ("POST", b""),
            ("POST", b"/a/rotate"),
            ("DELETE", b"/a"),
        ]:
            assert (await send(app, method, b"/api/keys" + target)).status == 401

    async def test_an_endpoint_need_not_be_hashable(
        self, auth: FastAPIAuth[User], world: World, app: FastAPI
    ) -> None:
        @dataclass
        class Greeting:
            text: str

            def __call__(self, limit: int = 1) -> str:
                return self.text

        app.add_api_route("/greeting", Greeting("hello"), dependencies=[auth.principal])
        assert (await send(app, "GET", b"/greeting")).status == 401
        assert (await send(app, "GET", b"/greeting?limit=a")).status == 401
        reply = await send(app, "GET", b"/greeting", world.bearer("key"))
        assert (reply.status, reply.json) == (200, "hello")
        (found,) = [each for each in list_routes(app).routes if each.path == "/greeting"]
        assert found.policies == (require(),)

    async def test_install_is_for_fastapi(self, auth: FastAPIAuth[User]) -> None:
        with pytest.raises(ConfigurationError, match="Use StarletteAuth"):
            auth.install(Starlette())


async def test_the_application_s_lifespan_surrounds_the_authenticator_s(world: World) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        order.append("store opened")
        yield {"pool": 1}
        order.append("store closed")

    async def touch(last_used: Any) -> None:
        order.append("written")

    world.store.touch = touch  # type: ignore[method-assign]
    app = FastAPI(lifespan=lifespan)
    auth = FastAPIAuth(world.authenticator)
    auth.install(app, errors="all")

    @app.get("/me", dependencies=[auth.principal])
    async def me() -> None: ...

    async with app.router.lifespan_context(app) as state:
        assert state == {"pool": 1}
        await send(app, "GET", b"/me", world.bearer("key"))
    assert order == ["store opened", "written", "store closed"]


class TestOpenApi:
    @pytest.fixture
    async def document(self, world: World) -> dict[str, Any]:
        return fastapi_app(world.authenticator).openapi()

    async def test_shows_the_problems_of_guarded_routes_only(
        self, document: dict[str, Any]
    ) -> None:
        paths = document["paths"]
        assert {"401", "403", "503"} <= paths["/me"]["get"]["responses"].keys()
        assert {"401", "403", "503"} & paths["/public"]["get"]["responses"].keys() == set()
        refused = paths["/me"]["get"]["responses"]["401"]
        assert refused["content"].keys() == {"application/problem+json"}
        assert "WWW-Authenticate" in refused["headers"]

    async def test_leaves_what_the_application_described(
        self, auth: FastAPIAuth[User], app: FastAPI
    ) -> None:
        @app.get("/own", dependencies=[auth.principal], responses={401: {"description": "mine"}})
        async def own() -> None: ...

        assert app.openapi()["paths"]["/own"]["get"]["responses"]["401"]["description"] == "mine"

    async def test_members_of_a_path_that_are_no_operations_stay(self) -> None:
        path = {"summary": "security", "parameters": [{"name": "a"}]}
        assert complete_document({"paths": {"/": dict(path)}}, errors="all")["paths"] == {"/": path}


class TestAProtectedRouter:
    """An application keeps its routes, controllers and dependencies, and gives their router one guard."""

    @pytest.fixture
    def protected(self, auth: FastAPIAuth[User], app: FastAPI) -> FastAPI:
        router = APIRouter()

        def current_user(request: Request, x_token: Annotated[str | None, Header()] = None) -> str:
            if auth.is_admitted(request):
                return auth.principal_of(request).user.name
            if x_token is None:
                raise HTTPException(401)
            return "found by its token"

        class Controller:
            """As class-based routers make them: one dependency, which all of their methods share."""

            def __init__(self, user: Annotated[str, Depends(current_user)]) -> None:
                self.user = user

        ThisController: TypeAlias = Annotated[Controller, Depends()]

        @router.get("/recipes")
        def read(controller: ThisController) -> str:
            return controller.user

        @router.api_route("/recipes/both", methods=["GET", "DELETE"], include_in_schema=False)
        def both(controller: ThisController) -> str:
            return controller.user

        @router.post("/recipes")
        def write(
            controller: ThisController, principal: Annotated[Principal[User], auth.principal]
        ) -> str:
            return f"{controller.user} {principal.user.name}"

        @router.websocket("/recipes")
        async def follow(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.close()

        by_method = auth.protect(require("tasks:read"), unsafe=require("tasks:run"))
        app.include_router(router, dependencies=[by_method])
        app.include_router(router, prefix="/own")
        return app

    async def test_demands_what_its_method_does(self, world: World, protected: FastAPI) -> None:
        for method, target, credential, expected in (
            ("GET", "/recipes", "key_read", "200"),
            ("GET", "/recipes/both", "key_read", "200"),
            ("DELETE", "/recipes/both", "key_read", "permission_denied"),
            ("POST", "/recipes", "key_read", "permission_denied"),
            ("POST", "/recipes", "key", "200"),
            ("POST", "/recipes", "jwt", "200"),
            ("GET", "/recipes", None, "credentials_missing"),
        ):
            headers = [] if credential is None else world.bearer(credential)
            reply = await send(protected, method, target.encode(), headers)
            found = "200" if reply.status == 200 else reply.json["code"]
            assert found == expected, (method, target, credential)
        written = await send(protected, "POST", b"/recipes", world.bearer("key"))
        assert written.json == "Alice Alice"

    async def test_a_websocket_demands_what_is_unsafe(
        self, world: World, protected: FastAPI
    ) -> None:
        assert (await connect(protected, "/recipes", world.bearer("key")))[0]["type"] == (
            "websocket.accept"
        )
        refused = await connect(protected, "/recipes", world.bearer("key_read"))
        assert refused[0]["type"] != "websocket.accept"

    async def test_is_admitted_where_a_guard_stands_alone(
        self, world: World, protected: FastAPI
    ) -> None:
        key = world.bearer("key")
        assert (await send(protected, "GET", b"/own/recipes", key)).status == 401
        token = [*key, (b"x-token", b"7")]
        assert (await send(protected, "GET", b"/own/recipes", token)).json == "found by its token"
        assert (await send(protected, "GET", b"/recipes", token)).json == "Alice"

    async def test_the_audit_and_the_document_go_by_the_method(self, protected: FastAPI) -> None:
        routes = {str(route): route.permissions for route in list_routes(protected).routes}
        assert routes["GET /recipes/both"] == ("tasks:read",)
        assert routes["DELETE /recipes/both"] == routes["WEBSOCKET /recipes"] == ("tasks:run",)
        paths = protected.openapi()["paths"]
        for method, permission in (("get", "tasks:read"), ("post", "tasks:run")):
            security = paths["/recipes"][method]["security"]
            assert security == [{"Login": [permission]}, {"ApiKey": [permission]}]
