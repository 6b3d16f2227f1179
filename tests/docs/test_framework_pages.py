"""The pages of the four frameworks: the same headings, applications that work, and mistakes that have the effect described."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jwt
import pytest
from itsdangerous import TimestampSigner
from litestar.testing import TestClient as LitestarClient
from starlette.testclient import TestClient

from msk_auth.errors import ConfigurationError
from msk_auth.testing import Access, audit_routes, key_headers

from .tutorial import blocks

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
FRAMEWORKS = ["fastapi", "flask", "litestar", "starlette"]


def text_of(framework: str) -> str:
    return (HOW_TO / f"{framework}.md").read_text("utf-8")


def section(framework: str, heading: str) -> str:
    return text_of(framework).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> dict[str, str]:
    """The table of a section: from the first cell of each row to the second."""
    found = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
    return dict(found[1:])


@pytest.fixture
def load(tmp_path: Path) -> Generator[Callable[[str], ModuleType]]:
    """Runs source as a module of its own. Litestar finds the annotations of a handler by the name of its module."""
    loaded: list[str] = []

    def load(source: str) -> ModuleType:
        name = f"page_{len(loaded)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


def python(framework: str, count: int | None = None) -> str:
    """The first blocks of a page; all of them if there is no count."""
    found = (b.text for b in blocks(HOW_TO / f"{framework}.md") if b.language == "python")
    return "\n\n".join(islice(found, count))


# The applications.


def client_of(framework: str, app: Any) -> Any:
    """A client of the framework, which answers 500 where a request raised."""
    if framework == "flask":
        return app.test_client()
    if framework == "litestar":
        return LitestarClient(app, raise_server_exceptions=False)
    return TestClient(app, raise_server_exceptions=False)


def content(reply: Any) -> Any:
    return reply.json() if callable(reply.json) else reply.json


def key_of(framework: str, authenticator: Any, client: Any) -> dict[str, str]:
    if framework == "flask":
        return key_headers(authenticator, "ada")
    portal = client.blocking_portal if framework == "litestar" else client.portal
    return key_headers(authenticator, "ada", portal=portal)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_and_an_existing_application_take_keys(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework))
    # The first block gives its name to what the factory replaces later.
    new = load(python(framework, 1))
    in_its_form = "Send an API key or a login token in the header 'Authorization: Bearer …'."
    for app, auth, refused in (
        (new.app, new.auth, ("code", "credentials_missing")),
        (page.existing, page.existing_auth, ("error", in_its_form)),
    ):
        with client_of(framework, app) as client:
            reply = client.get("/tasks")
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == 'Bearer realm="api"'
            assert content(reply)[refused[0]] == refused[1]
            key = key_of(framework, auth.authenticator, client)
            assert client.get("/tasks", headers=key).status_code == 200


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_existing_application_keeps_its_logins(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework, 2))
    with client_of(framework, page.existing) as client:
        headers = {}
        if framework == "flask":
            with client.session_transaction() as session:
                session["user_id"] = "ada"
        elif framework == "starlette":
            written = base64.b64encode(json.dumps({"user_id": "ada"}).encode())
            signed = TimestampSigner(page.SECRET.decode()).sign(written)
            client.cookies.set("session", signed.decode())
        elif framework == "litestar":
            headers = {"Authorization": f"Bearer {page.jwt_auth.create_token('ada')}"}
            assert client.get("/profile", headers=headers).text == "ada"
            key = key_of(framework, page.existing_auth.authenticator, client)
            assert client.get("/profile", headers=key).status_code == 401
        else:
            claims = {"sub": "ada", "exp": 4_000_000_000}
            headers = {"Authorization": f"Bearer {jwt.encode(claims, page.SECRET, 'HS256')}"}
        assert client.get("/tasks", headers=headers).status_code == 200
        reply = client.get("/tasks", headers={"Authorization": "Bearer of-something-else"})
        assert (reply.status_code, content(reply).keys()) == (401, {"error"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_open_is_guarded_and_watched(
    framework: str, load: Callable[[str], ModuleType]
) -> None:
    page = load(python(framework))
    authenticator = page.new_authenticator()
    if framework == "flask":
        app = page.create_app(authenticator)
        app.register_blueprint(page.streams)
        client = app.test_client()
        assert client.get("/ticks").status_code == 401
        reply = client.get("/ticks", headers=key_headers(authenticator, "ada"), buffered=False)
        assert next(iter(reply.response)).startswith(b"event: tick")
        reply.close()
        return
    handlers = [page.echo, page.ticks] if framework == "litestar" else []
    with client_of(framework, page.create_app(authenticator, *handlers)) as client:
        assert client.get("/ticks").status_code == 401
        key = key_of(framework, authenticator, client)
        with client.websocket_connect("/echo", headers=key) as websocket:
            websocket.send_text("hello")
            assert websocket.receive_text() == "hello"


# The mistakes.


class Mistake(NamedTuple):
    """A row of a table of mistakes.

    Attributes:
        effect: `at once`: the source raises. `check`: `auth.check` does, and a request gets 500. `request`: a request gets 500.
            `open`: a request without credentials gets 200, and the route audit fails. `public`: the same, and the audit lists
            it as public.
        source: What makes the mistake, behind the first block of the page.
        paths: Those of the requests.
    """

    effect: Literal["at once", "check", "request", "open", "public"]
    source: str
    paths: tuple[str, ...] = ("/wrong",)


SPACE = Mistake("at once", 'auth.require("tasks:read tasks:write")')
FLASK_VIEW = "wrong = Flask('wrong', static_folder=None)\nauth.init_app(wrong)\n"

MISTAKES: dict[str, list[Mistake]] = {
    "fastapi": [
        Mistake(
            "open",
            """
wrong = auth.install(FastAPI(openapi_url=None))
wrong.get("/wrong")(lambda: None)
""",
        ),
        Mistake(
            "open",
            """
from starlette.responses import Response
wrong = auth.install(FastAPI(openapi_url=None, dependencies=[auth.require()]))
wrong.add_route("/wrong", lambda request: Response())
wrong.mount("/mounted", lambda scope, receive, send: Response()(scope, receive, send))
""",
            paths=("/wrong", "/mounted/"),
        ),
        SPACE,
        Mistake(
            "request",
            """
from starlette.routing import Mount
inner, keys = FastAPI(), FastAPI()
inner.get("/wrong", dependencies=[auth.principal])(lambda: None)
keys.include_router(auth.key_routes(prefix="/wrong"))
wrong = inner, auth.install(FastAPI(routes=[Mount("/", inner)])), keys
""",
        ),
        Mistake(
            "request",
            """
from fastapi import Request
from msk_auth import require
def view(request: Request):
    auth.admit(request, require())
wrong = auth.install(FastAPI())
wrong.get("/wrong")(view)
""",
        ),
    ],
    "flask": [
        Mistake("open", FLASK_VIEW + "wrong.get('/wrong')(lambda: '')"),
        Mistake("check", FLASK_VIEW + "auth.require()(wrong.get('/wrong')(lambda: ''))"),
        Mistake(
            "check",
            FLASK_VIEW
            + """
from flask import Blueprint
closed = Blueprint("closed", __name__)
auth.protect(closed)
closed.get("/wrong")(lambda: "")
wrong.register_blueprint(closed)
""",
        ),
        Mistake("check", FLASK_VIEW + "auth.protect(wrong)\nwrong.get('/wrong')(lambda: '')"),
        Mistake("at once", "auth.public(auth.require()(lambda: ''))"),
        SPACE,
        Mistake(
            "at once",
            """
from msk_auth import AsyncAuthenticator
from msk_auth.stores.memory import AsyncMemoryKeyStore
FlaskAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))
""",
        ),
        Mistake(
            "check",
            FLASK_VIEW
            + """
wrong.get("/wrong")(auth.require()(lambda: ""))
auth.protect(wrong)
wrong.view_functions["<lambda>"] = lambda: ""
""",
        ),
        Mistake("check", FLASK_VIEW + "auth.declare_view(wrong, 'nowhere', None)"),
        Mistake("request", "wrong = Flask('x')\nwrong.get('/wrong')(auth.require()(lambda: ''))"),
    ],
    "litestar": [
        Mistake(
            "at once",
            """
@get("/wrong")
async def handler() -> None: ...
Litestar([handler], plugins=[auth])
""",
        ),
        Mistake(
            "at once",
            """
def own(connection, handler): ...
@get("/wrong", guards=[own])
async def handler() -> None: ...
Litestar([handler], plugins=[auth])
""",
        ),
        Mistake(
            "at once",
            """
@get("/wrong", guards=[auth.require()], opt=auth.public)
async def handler() -> None: ...
Litestar([handler], plugins=[auth])
""",
        ),
        Mistake(
            "public",
            """
from litestar import Controller
auth = LitestarAuth(auth.authenticator, exclude_opt_key="exclude_from_auth")
class Wrong(Controller):
    opt = {"exclude_from_auth": True}
    @get("/wrong")
    async def handler(self) -> None: ...
wrong = Litestar([Wrong], plugins=[auth], openapi_config=None)
""",
        ),
        Mistake("at once", "Litestar(plugins=[auth, LitestarAuth(auth.authenticator)])"),
        Mistake(
            "at once",
            """
@get("/wrong", guards=[LitestarAuth(auth.authenticator).require()])
async def handler() -> None: ...
Litestar([handler], plugins=[auth])
""",
        ),
        SPACE,
        Mistake(
            "request",
            """
@get("/wrong", guards=[auth.require()])
async def handler() -> None: ...
wrong = Litestar([handler], logging_config=None)
""",
        ),
        Mistake(
            "request",
            """
from typing import Any
from litestar import Request
from msk_auth import require
@get("/wrong", opt=auth.public, sync_to_thread=True)
def handler(request: Request[Any, Any, Any]) -> None:
    auth.admit(request, require())
wrong = Litestar([handler], plugins=[auth], logging_config=None)
""",
        ),
    ],
    "starlette": [
        Mistake(
            "open",
            """
from starlette.responses import Response
wrong = auth.install(Starlette(routes=[Route("/wrong", lambda request: Response())]))
""",
        ),
        Mistake(
            "at once",
            """
from starlette.endpoints import HTTPEndpoint
@auth.require()
class Wrong(HTTPEndpoint): ...
""",
        ),
        Mistake("at once", "auth.public(tasks)"),
        SPACE,
        Mistake(
            "request",
            """
def endpoint(request):
    auth.principal(request)
wrong = auth.install(Starlette(routes=[Route("/wrong", endpoint)]))
""",
        ),
        Mistake(
            "request",
            """
from starlette.routing import Mount
inner = Starlette(routes=[Route("/wrong", tasks)])
wrong = inner, auth.install(Starlette(routes=[Mount("/", inner)]))
""",
        ),
        Mistake(
            "request",
            """
from msk_auth import require
def endpoint(request):
    auth.admit(request, require())
wrong = auth.install(Starlette(routes=[Route("/wrong", endpoint)]))
""",
        ),
    ],
}
# What the second cell of a row says of each effect.
SAID = {
    "open": r"^(It is|The routes are) open.*audit.*fails\.$",
    "public": r"^It is open.* audit.* lists it as `public`\.$",
    "at once": r"^`ConfigurationError` (at once|when |where |from )",
    "check": r"^`ConfigurationError` before the first request, or from `auth\.check\(app\)`$",
    "request": r"^`ConfigurationError` with each request",
}
CASES = [
    pytest.param(framework, *row, mistake, id=f"{framework}-{row[0]}")
    for framework in FRAMEWORKS
    for row, mistake in zip(
        rows(section(framework, "Mistakes")).items(), MISTAKES[framework], strict=True
    )
]


@pytest.mark.parametrize(("framework", "_mistake", "said", "made"), CASES)
def test_a_mistake_has_the_effect_that_the_page_says(
    framework: str,
    _mistake: str,
    said: str,
    made: Mistake,
    load: Callable[[str], ModuleType],
) -> None:
    assert re.search(SAID[made.effect], said)
    source = f"{python(framework, 1)}\n\n{made.source}"
    if made.effect == "at once":
        with pytest.raises(ConfigurationError):
            load(source)
        return
    module = load(source)
    # One application, or several with the same mistake.
    wrong: Any = module.wrong
    match made.effect:
        case "check":
            with pytest.raises(ConfigurationError):
                module.auth.check(wrong)
        case "open":
            with pytest.raises(AssertionError, match="the route audit found"):
                audit_routes(wrong)
        case "public":
            assert audit_routes(wrong).routes[0].access is Access.PUBLIC
        case "request":
            pass
    status = 200 if made.effect in {"open", "public"} else 500
    applications: list[Any] = [*wrong] if type(wrong) is tuple else [wrong]
    for app in applications:
        with client_of(framework, app) as client:
            assert [client.get(path).status_code for path in made.paths] == [status] * len(
                made.paths
            )
