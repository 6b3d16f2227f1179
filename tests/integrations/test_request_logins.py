"""Logins of an application that are not in the `Authorization` header, the same in every adapter."""

# No `from __future__ import annotations`: the frameworks read the annotations of local names.

from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest
from tests.cases import case
from tests.contract.adapter import START, describe, make_world
from tests.integrations.adapters import ADAPTERS, WITH_WEBSOCKETS, application, send

from msk_auth import Login
from msk_auth.errors import CredentialRefused
from msk_auth.http.admission import LoginSources
from msk_auth.integrations import is_same_origin

pytestmark = pytest.mark.anyio

Headers = list[tuple[bytes, bytes]]

SAME = (b"sec-fetch-site", b"same-origin")
CROSS = (b"sec-fetch-site", b"cross-site")


class Sessions:
    """The application's own sessions, by the value of its cookie."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {
            "alice": Login("alice", START, "alice-open"),
            "unknown-age": Login("alice"),
            "ended": Login("alice", START, "alice-ended"),
            "of-bob": Login("alice", START, "bob-open"),
            "disabled": Login("dora"),
            "gone": Login("nobody"),
            "machine": Login("root", interactive=False),
            "root": Login("root"),
            "expired": CredentialRefused("token_expired"),
            "error": RuntimeError("secret"),
            "wrong": {"owner_id": "alice"},
        }
        self.asked = 0

    def find(self, request: Any) -> Any:
        """What an application writes; every framework's request has `cookies`."""
        self.asked += 1
        answer = self.table.get(request.cookies.get("session", ""))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find_async(self, request: Any) -> Any:
        return self.find(request)


class Site:
    """An application with sessions, and a way to send it requests."""

    def __init__(
        self, name: str, *, awaited: bool = False, blocking: bool = False, **options: Any
    ) -> None:
        self.world = make_world(**({"lease": options.pop("lease")} if "lease" in options else {}))
        self.sessions = Sessions()
        find = self.sessions.find_async if awaited else self.sessions.find
        if blocking:
            self.world.authenticator = self.world.blocking  # type: ignore[assignment]
        self.app = application(name, self.world, logins=[find], **options)

    async def send(
        self,
        line: str,
        cookie: str | None = None,
        *headers: tuple[bytes, bytes],
        body: bytes = b"",
        origin: Headers | None = None,
    ) -> tuple[int, Any]:
        """Status and JSON of a request of the application's own page; a `code` stands for its problem document."""
        method, _, target = line.partition(" ")
        sent: Headers = [*headers, *([SAME] if origin is None else origin)]
        if cookie is not None:
            sent.append((b"cookie", f"session={cookie}".encode()))
        reply = await send(self.app, method, target.encode(), sent, body)
        status, content = reply.status, reply.json if reply.body else None
        if isinstance(content, dict) and "code" in content:
            return status, content["code"]
        return status, content


@pytest.fixture(params=sorted(ADAPTERS))
def name(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture
def site(name: str) -> Site:
    return Site(name)


ANSWERS: list[tuple[str | None, str, int, Any]] = [
    (None, "GET /me", 401, "credentials_missing"),
    ("", "GET /me", 401, "credentials_missing"),
    ("not-stored", "GET /me", 401, "credentials_missing"),
    ("ended", "GET /me", 401, "token_revoked"),
    ("of-bob", "GET /me", 401, "token_revoked"),
    ("disabled", "GET /me", 401, "token_revoked"),
    ("gone", "GET /me", 401, "token_revoked"),
    ("expired", "GET /me", 401, "token_expired"),
    ("error", "GET /me", 503, "store_unavailable"),
    ("wrong", "GET /me", 503, "store_unavailable"),
    ("machine", "POST /fresh", 403, "interactive_required"),
    ("machine", "POST /api/keys", 403, "interactive_required"),
    ("unknown-age", "POST /fresh", 401, "login_too_old"),
    ("error", "GET /public", 200, {"public": True}),
]


async def test_a_session_gets_its_answer(site: Site) -> None:
    for cookie, line, status, answer in ANSWERS:
        with case(cookie, line):
            assert await site.send(line, cookie) == (status, answer)


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_session_is_a_persons_login(name: str, awaited: bool) -> None:
    if name == "flask" and awaited:
        return
    site = Site(name, awaited=awaited)
    for cookie in ("alice", "unknown-age"):
        status, answer = await site.send("GET /me", cookie)
        assert (status, answer["owner"], answer["kind"]) == (200, "alice", "interactive")
    assert (await site.send("POST /fresh", "alice"))[0] == 200
    json = (b"content-type", b"application/json")
    status, _ = await site.send("POST /api/keys", "unknown-age", json, body=b'{"name":"ci"}')
    assert status == 201


async def test_one_request_asks_once(site: Site) -> None:
    await site.send("GET /me", "alice")
    assert site.sessions.asked == 1


async def test_a_bearer_credential_decides_alone(site: Site) -> None:
    names = site.world.names
    for value, status, answer in [
        (f"Bearer {names['key_bob']}", 200, "bob"),
        (f"Bearer {names['jwt_bob']}", 200, "bob"),
        (f"Bearer {names['key_revoked']}", 401, "key_revoked"),
        (f"Bearer {names['jwt_forged']}", 401, "token_invalid"),
        ("Bearer nonsense", 401, "key_malformed"),
        ("Bearer", 400, "request_malformed"),
        ("Bearer a, Bearer b", 400, "request_malformed"),
    ]:
        header = (b"authorization", value.encode())
        found, content = await site.send("GET /me", "alice", header)
        assert (found, content["owner"] if status == 200 else content) == (status, answer)
    assert site.sessions.asked == 0


async def test_a_header_of_another_scheme_is_not_ours(site: Site) -> None:
    for value in (b"", b"Basic YTpi", b'Digest a="b"'):
        with case(value):
            assert (await site.send("GET /me", "alice", (b"authorization", value)))[0] == 200
            refused = await site.send("GET /me", None, (b"authorization", value))
            assert refused == (401, "credentials_missing")


async def test_under_a_lease_each_request_asks(name: str) -> None:
    site = Site(name, lease=timedelta(milliseconds=250))
    site.sessions.table["alice"] = Login("alice", valid_until=START + timedelta(hours=1))
    for _ in range(2):
        assert (await site.send("GET /me", "alice"))[0] == 200
    assert site.sessions.asked == 2
    site.sessions.table.clear()
    assert await site.send("GET /me", "alice") == (401, "credentials_missing")


@pytest.mark.parametrize("name", sorted(WITH_WEBSOCKETS))
async def test_a_blocking_authenticator_calls_the_functions_in_a_thread(name: str) -> None:
    site = Site(name, blocking=True)
    status, answer = await site.send("GET /me", "alice")
    assert (status, answer["owner"]) == (200, "alice")
    assert await site.send("GET /me", "error") == (503, "store_unavailable")


ELSEWHERE: list[Headers] = [[], [CROSS], [SAME, CROSS], [(b"origin", b"https://evil.test")]]
"""What a page of the application does not send."""


async def test_a_login_counts_only_for_what_a_page_of_the_same_origin_sent(site: Site) -> None:
    for origin in ELSEWHERE:
        for line in ("POST /tasks/run", "POST /fresh", "POST /api/keys"):
            assert await site.send(line, "alice", origin=origin) == (403, "cross_origin_refused")
        assert (await site.send("GET /me", "alice", origin=origin))[0] == 200
        # There is nothing to protect without a login, and a header is nothing that a browser adds.
        assert await site.send("POST /tasks/run", origin=origin) == (401, "credentials_missing")
        key = (b"authorization", f"Bearer {site.world.names['key']}".encode())
        assert (await site.send("POST /tasks/run", "alice", key, origin=origin))[0] == 200
    assert (await site.send("POST /tasks/run", "alice"))[0] == 200


async def test_an_application_may_have_a_protection_of_its_own(name: str) -> None:
    site = Site(name, own_csrf_protection=True)
    for origin in ELSEWHERE:
        assert (await site.send("POST /tasks/run", "alice", origin=origin))[0] == 200


@pytest.mark.parametrize(
    ("method", "scheme", "headers", "is_foreign"),
    [
        ("GET", "https", [CROSS], False),
        ("DELETE", "https", [], True),
        ("DELETE", "https", [SAME], False),
        # The handshake of a websocket.
        (None, "wss", [CROSS], True),
        (None, "wss", [], True),
        (None, "wss", [(b"host", b"tasks.test"), (b"origin", b"https://tasks.test")], False),
    ],
)
def test_which_requests_may_be_another_sites(
    method: str | None, scheme: str, headers: Headers, is_foreign: bool
) -> None:
    for own, expected in ((False, is_foreign), (True, False)):
        sources = LoginSources([lambda _: None], own_csrf_protection=own)
        asked = sources.ask(object(), method=method, scheme=scheme, headers=headers)
        assert asked.is_foreign is expected


async def test_a_function_may_limit_logins_to_a_part_of_the_application(name: str) -> None:
    site = Site(name)
    find = site.sessions.find

    def find_on_pages(request: Any) -> Any:
        # Flask has the path as text.
        path = getattr(request.url, "path", None) or request.path
        return find(request) if path == "/tasks/run" else None

    site.app = application(name, site.world, logins=[find_on_pages])
    assert (await site.send("POST /tasks/run", "alice"))[0] == 200
    assert await site.send("GET /api/keys", "alice") == (401, "credentials_missing")


OWN = ("host", "tasks.test")


ORIGINS: list[tuple[bool | None, str, list[tuple[str, str]]]] = [
    # No header shows it, as with programs.
    (None, "https", []),
    (None, "https", [OWN]),
    (None, "https", [OWN, ("referer", "https://tasks.test/")]),
    # A browser states it.
    (True, "https", [OWN, ("sec-fetch-site", "same-origin")]),
    (True, "https", [("sec-fetch-site", "none")]),
    (True, "https", [OWN, ("sec-fetch-site", "same-origin"), ("origin", "null")]),
    (False, "https", [OWN, ("sec-fetch-site", "same-site")]),
    (False, "https", [OWN, ("sec-fetch-site", "cross-site")]),
    # It knows better than the origin, which another service on the same host may share.
    (False, "https", [OWN, ("sec-fetch-site", "cross-site"), ("origin", "https://tasks.test")]),
    # Over plain HTTP, and in older browsers, only the origin shows it.
    (True, "http", [OWN, ("origin", "http://tasks.test")]),
    (True, "https", [OWN, ("origin", "https://tasks.test")]),
    (True, "https", [("host", "tasks.test:8443"), ("origin", "https://tasks.test:8443")]),
    (True, "http", [("host", "[::1]:8000"), ("origin", "http://[::1]:8000")]),
    (True, "ws", [OWN, ("origin", "http://tasks.test")]),
    (True, "wss", [OWN, ("origin", "https://tasks.test")]),
    (False, "wss", [OWN, ("origin", "wss://tasks.test")]),
    (False, "https", [OWN, ("origin", "http://tasks.test")]),
    (False, "http", [OWN, ("origin", "https://tasks.test")]),
    (False, "https", [OWN, ("origin", "https://tasks.test:8443")]),
    # Attacks.
    (False, "https", [OWN, ("origin", "null")]),
    (False, "https", [OWN, ("origin", "")]),
    (False, "https", [OWN, ("origin", "https://evil.test")]),
    (False, "https", [OWN, ("origin", "https://tasks.test.evil.test")]),
    (False, "https", [OWN, ("origin", "https://tasks.test@evil.test")]),
    (False, "https", [OWN, ("origin", "https://tasks.test/")]),
    (False, "https", [OWN, ("origin", "https://tasks.test https://evil.test")]),
    (False, "https", [OWN, ("origin", "https://evil.test, https://tasks.test")]),
    (False, "https", [OWN, ("sec-fetch-site", "")]),
    (False, "https", [OWN, ("sec-fetch-site", "same-origin, cross-site")]),
    (False, "https", [OWN, ("sec-fetch-site", "Same-Origin")]),
    (False, "https", [("origin", "https://tasks.test")]),
    (False, "https", [("origin", "https://")]),
    (False, "https", [("host", ""), ("origin", "https://")]),
    # No browser sends one of them twice.
    (False, "https", [OWN, OWN, ("sec-fetch-site", "same-origin")]),
    (False, "https", [OWN, ("host", "evil.test"), ("origin", "https://tasks.test")]),
    (False, "https", [("host", "tasks"), ("host", ".test"), ("origin", "https://tasks.test")]),
    (False, "https", [OWN, ("origin", "https://tasks.test"), ("origin", "null")]),
    (False, "https", [OWN, *[("sec-fetch-site", "same-origin")] * 2]),
    (
        False,
        "https",
        [OWN, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
    ),
]


def test_whether_a_page_of_the_same_origin_sent_a_request() -> None:
    for own, scheme, headers in ORIGINS:
        with case(scheme, headers):
            sent = [(name.encode(), value.encode()) for name, value in headers]
            assert is_same_origin(sent, scheme) is own


@pytest.mark.skipif("litestar" not in WITH_WEBSOCKETS, reason="Litestar is not installed")
@pytest.mark.parametrize("layer", ["app", "handler", "later plugin"])
async def test_litestar_asks_after_the_middleware_that_makes_the_session(layer: str) -> None:
    from litestar import Litestar, Request, get, post
    from litestar.config.app import AppConfig
    from litestar.middleware.session.client_side import CookieBackendConfig
    from litestar.plugins import InitPlugin

    from msk_auth.integrations.litestar import LitestarAuth

    session = CookieBackendConfig(secret=b"s" * 16).middleware

    def find(connection: Any) -> Login | None:
        return Login(connection.session["user"]) if connection.session else None

    auth = LitestarAuth(make_world().authenticator, logins=[find])
    middleware = [session] if layer == "handler" else None

    @post("/sign-in", opt=auth.public, middleware=middleware)
    async def sign_in(request: Request[Any, Any, Any]) -> None:
        request.set_session({"user": "alice"})

    @get("/me", guards=[auth.require()], middleware=middleware)
    async def me(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return describe(request.auth)

    class Later(InitPlugin):
        def on_app_init(self, app_config: AppConfig) -> AppConfig:
            if layer == "later plugin":
                app_config.middleware.append(session)
            return app_config

    app = Litestar(
        [sign_in, me], plugins=[auth, Later()], middleware=[session] if layer == "app" else []
    )
    assert (await send(app, "GET", b"/me")).json["code"] == "credentials_missing"
    if layer != "handler":
        assert (await send(app, "OPTIONS", b"/me")).json["code"] == "credentials_missing"
    signed_in = await send(app, "POST", b"/sign-in")
    cookie = str(signed_in.header("set-cookie")).partition(";")[0].encode()
    assert (await send(app, "GET", b"/me", [(b"cookie", cookie)])).json["owner"] == "alice"


@pytest.mark.skipif(find_spec("flask") is None, reason="Flask is not installed")
async def test_flask_reads_its_own_session() -> None:
    from flask import Flask, session

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    app.secret_key = "for tests only"
    auth = FlaskAuth(
        make_world().blocking,
        app,
        logins=[lambda _: Login(session["user"]) if "user" in session else None],
    )

    @app.post("/sign-in")
    def sign_in() -> Any:
        session["user"] = "alice"
        return {}

    @app.get("/me")
    @auth.require()
    def me() -> Any:
        return describe(auth.current_principal)

    browser = app.test_client()
    assert browser.get("/me").json["code"] == "credentials_missing"
    browser.post("/sign-in")
    assert browser.get("/me").json["owner"] == "alice"
