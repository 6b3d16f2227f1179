"""What only Starlette has: decorators of endpoints."""

from __future__ import annotations

import functools
import gc
import threading
import traceback
import weakref
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket
from tests.cases import case
from tests.contract.adapter import User, World
from tests.integrations.adapters import send
from tests.integrations.starlette_app import starlette_app
from tests.integrations.test_websockets import DENIAL, connect

from msk_auth import any_credential
from msk_auth.errors import ConfigurationError, Problem, TooManyAttempts
from msk_auth.http.answers import Answer, ProblemRenderer
from msk_auth.integrations.starlette import StarletteAuth

pytestmark = pytest.mark.anyio


@pytest.fixture
def auth(world: World) -> StarletteAuth[User]:
    return StarletteAuth(world.authenticator)


def serve(auth: StarletteAuth[User], *routes: Any) -> Starlette:
    app = Starlette(routes=routes)
    auth.install(app, errors="all")
    return app


async def ok(request: Request) -> Response:
    return JSONResponse("ok")


class TestRefusals:
    """A guard raises, and a handler of the application's own sees what it raised."""

    async def test_a_problem_keeps_no_frame_that_holds_the_credential(
        self, auth: StarletteAuth[User], world: World
    ) -> None:
        kept: list[set[str]] = []

        async def on_refused(request: Request, error: Exception) -> Response:
            kept.append({frame.name for frame in traceback.extract_tb(error.__traceback__)})
            return JSONResponse(None, 401)

        routes = [Route("/", auth.require()(ok))]
        app = Starlette(routes=routes, exception_handlers={Problem: on_refused})
        auth.install(app)
        for _ in range(2):
            assert (await send(app, "GET", b"/", world.bearer("key_revoked"))).status == 401
        assert ["authenticate" in names for names in kept] == [False, False]

    async def test_a_problem_is_freed_without_the_garbage_collector(
        self, auth: StarletteAuth[User], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Frames of a traceback hold each other, and the credentials."""
        made: list[weakref.ref[Problem]] = []
        answer = ProblemRenderer.answer

        def spy(renderer: ProblemRenderer, problem: Problem) -> Answer:
            made.append(weakref.ref(problem))
            return answer(renderer, problem)

        monkeypatch.setattr(ProblemRenderer, "answer", spy)
        app = serve(
            auth,
            Route("/one", auth.require()(ok)),
            Route("/two", auth.require()(auth.require()(ok))),
        )
        gc.collect()
        gc.disable()
        try:
            for path in (b"/one", b"/two"):
                assert (await send(app, "GET", path)).status == 401
        finally:
            gc.enable()
        assert [problem() for problem in made] == [None, None]


async def test_a_guard_in_a_router_without_an_application_refuses(
    auth: StarletteAuth[User], world: World
) -> None:
    router = Router(routes=[Route("/", auth.require()(ok))])
    for headers in ([], world.bearer("jwt"), world.bearer("jwt_admin")):
        with pytest.raises(ConfigurationError, match=r"Call auth.install\(app\)"):
            await send(router, "GET", b"/", headers)


class TestDecorators:
    async def test_keep_the_name_of_the_endpoint(self, auth: StarletteAuth[User]) -> None:
        assert auth.require("tasks:read")(ok).__name__ == "ok"  # type: ignore[attr-defined]

    async def test_a_sync_endpoint_runs_in_a_thread_and_its_guard_does_not(
        self, auth: StarletteAuth[User], world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[threading.Thread] = []
        find = world.store.blocking.find

        def spy(key_id: str) -> Any:
            threads.append(threading.current_thread())
            return find(key_id)

        monkeypatch.setattr(world.store.blocking, "find", spy)

        @auth.require()
        def endpoint(request: Request) -> Response:
            threads.append(threading.current_thread())
            return JSONResponse(auth.principal(request).user.name)

        app = serve(auth, Route("/", endpoint))
        assert (await send(app, "GET", b"/", world.bearer("key"))).json == "Alice"
        assert threads[0] is threading.main_thread()
        assert threads[1] is not threading.main_thread()

    async def test_methods_of_an_endpoint_class(
        self, auth: StarletteAuth[User], world: World
    ) -> None:
        class Tasks(HTTPEndpoint):
            @auth.require("tasks:read")
            async def get(self, request: Request) -> Response:
                return JSONResponse(auth.principal(request).user.name)

            @auth.require_interactive()
            def post(self, request: Request) -> Response:
                return JSONResponse("done")

        app = serve(auth, Route("/", Tasks))
        assert (await send(app, "GET", b"/")).json["code"] == "credentials_missing"
        assert (await send(app, "GET", b"/", world.bearer("key"))).json == "Alice"
        assert (await send(app, "POST", b"/", world.bearer("key"))).status == 403
        assert (await send(app, "POST", b"/", world.bearer("jwt"))).json == "done"
        assert (await send(app, "PUT", b"/")).status == 405

    async def test_callable_objects_and_partials(
        self, auth: StarletteAuth[User], world: World
    ) -> None:
        class Greeting:
            async def __call__(self, request: Request) -> Response:
                return JSONResponse("hello")

        async def named(name: str, request: Request) -> Response:
            return JSONResponse(name)

        partial = functools.partial(named, "bob")
        app = serve(
            auth, Route("/a", auth.require()(Greeting())), Route("/b", auth.require()(partial))
        )
        assert (await send(app, "GET", b"/a", world.bearer("key"))).json == "hello"
        assert (await send(app, "GET", b"/b", world.bearer("key"))).json == "bob"
        assert (await send(app, "GET", b"/b")).status == 401

    async def test_keyword_arguments(self, auth: StarletteAuth[User], world: World) -> None:
        @auth.require()
        async def endpoint(*, request: Request) -> Response:
            return await ok(request)

        app = serve(auth, Route("/", functools.partial(_call, endpoint)))
        assert (await send(app, "GET", b"/", world.bearer("key"))).status == 200

    async def test_a_class_cannot_be_decorated(self, auth: StarletteAuth[User]) -> None:
        with pytest.raises(ConfigurationError, match="decorate its methods"):
            auth.require()(HTTPEndpoint)
        with pytest.raises(ConfigurationError, match="not on 'tasks:read'"):
            auth.require()("tasks:read")  # type: ignore[call-overload]

    async def test_an_endpoint_called_without_a_request_refuses(
        self, auth: StarletteAuth[User]
    ) -> None:
        with pytest.raises(ConfigurationError, match="without a request"):
            await auth.require()(ok)({"type": "http"})  # type: ignore[arg-type]

    @pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("OPTIONS", 405), ("GET", 200)])
    async def test_head_is_guarded_as_get_is(self, world: World, method: str, status: int) -> None:
        app = starlette_app(world.authenticator)
        assert (await send(app, method, b"/me", world.bearer("key"))).status == status
        assert (await send(app, method, b"/me")).status == (401 if status == 200 else 405)
        config = await send(app, method, b"/admin/config", world.bearer("key_admin"))
        assert config.status == (403 if status == 200 else 405)

    async def test_behind_a_mount(self, auth: StarletteAuth[User], world: World) -> None:
        app = serve(
            auth, Mount("/v1", routes=[Route("/me", auth.require()(ok)), *auth.key_routes()])
        )
        assert (await send(app, "GET", b"/v1/me")).status == 401
        assert (await send(app, "GET", b"/v1/me", world.bearer("key"))).status == 200
        headers = [*world.bearer("jwt"), (b"content-type", b"application/json")]
        created = await send(app, "POST", b"/v1/api/keys", headers, b'{"name": "a"}')
        assert created.header("location") == f"/v1/api/keys/{created.json['id']}"
        rotated = await send(
            app, "POST", f"/v1/api/keys/{created.json['id']}/rotate".encode(), headers
        )
        assert rotated.header("location") == f"/v1/api/keys/{rotated.json['id']}"


async def _call(endpoint: Any, request: Request) -> Any:
    return await endpoint(request=request)


class TestPrincipal:
    async def test_of_a_route_without_a_guard_is_a_mistake(
        self, auth: StarletteAuth[User], world: World
    ) -> None:
        async def endpoint(request: Request) -> Response:
            return JSONResponse(auth.principal(request).user.name)

        app = serve(auth, Route("/", endpoint))
        with pytest.raises(ConfigurationError, match="without a guard"):
            await send(app, "GET", b"/", world.bearer("key"))


async def test_it_is_admitted_where_a_guard_has_let_it_pass(
    auth: StarletteAuth[User], world: World
) -> None:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(auth.is_admitted(request))

    async def asks(request: Request) -> Response:
        await auth.admit(request, any_credential())
        return await endpoint(request)

    app = serve(auth, Route("/in", auth.require()(endpoint)), Route("/own", asks))
    assert (await send(app, "GET", b"/in", world.bearer("key"))).json is True
    # What the application has verified for itself is no guard's.
    assert (await send(app, "GET", b"/own", world.bearer("key"))).json is False


async def test_a_problem_after_the_close_of_a_websocket_sends_nothing(
    auth: StarletteAuth[User],
) -> None:
    async def closes(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close(4000)
        raise TooManyAttempts(7)

    class Closes(WebSocketEndpoint):
        async def on_connect(self, websocket: WebSocket) -> None:
            await closes(websocket)

    class Refuses(WebSocketEndpoint):
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.close(4000)
            raise TooManyAttempts(7)

    closed = {"type": "websocket.close", "code": 4000, "reason": ""}
    for endpoint, count in ((closes, 2), (Closes, 2), (Refuses, 1)):
        with case(endpoint):
            app = serve(auth, WebSocketRoute("/ws", endpoint))
            sent = await connect(app, "/ws", [], DENIAL)
            assert (len(sent), sent[-1]) == (count, closed)


async def test_a_websocket_is_refused_as_ever_where_refusals_are_http_errors(
    auth: StarletteAuth[User],
) -> None:
    @auth.require()
    async def refused(websocket: WebSocket) -> None:
        raise AssertionError(websocket)

    app = auth.install(Starlette(routes=[WebSocketRoute("/ws", refused)]), errors="http")
    start, body = await connect(app, "/ws", [], DENIAL)
    assert start["status"] == 401
    assert b"credentials_missing" in body["body"]
