"""Litestar's own authentication beside the library: its tokens are logins, and each handler is verified by one of the two."""

# No `from __future__ import annotations`: Litestar reads the annotations of local names.

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from litestar import Litestar, Router, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.middleware.session.client_side import CookieBackendConfig
from litestar.openapi import OpenAPIConfig
from litestar.security.jwt import (
    BaseJWTAuth,
    JWTAuth,
    JWTCookieAuth,
    OAuth2PasswordBearerAuth,
    Token,
)
from litestar.security.session_auth import SessionAuth
from tests.contract.adapter import Reply
from tests.integrations.adapters import send

from msk_auth import AsyncAuthenticator, Login, Owner
from msk_auth.errors import ConfigurationError
from msk_auth.integrations.litestar import JWTLogin, LitestarAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.testing import list_routes

pytestmark = pytest.mark.anyio

SECRET = "the-secret-with-which-the-application-signs"
# When the tests are collected, which may be minutes before they run.
NOW = int(datetime.now(UTC).timestamp())
HOUR = 3600
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
ANN = Owner("ann", frozenset({"tasks:read"}), user=None)

MakeAuth = Callable[..., BaseJWTAuth[Any, Any]]


async def find_user(token: Token, _: ASGIConnection[Any, Any, Any, Any]) -> str:
    return token.sub


def jwt_auth(**settings: Any) -> JWTAuth[Any, Token]:
    return JWTAuth(retrieve_user_handler=find_user, token_secret=SECRET, **settings)


def cookie_auth(**settings: Any) -> JWTCookieAuth[Any, Token]:
    return JWTCookieAuth(retrieve_user_handler=find_user, token_secret=SECRET, **settings)


def password_auth(**settings: Any) -> OAuth2PasswordBearerAuth[Any, Token]:
    return OAuth2PasswordBearerAuth(
        retrieve_user_handler=find_user, token_secret=SECRET, token_url="/login", **settings
    )


def signed(secret: str = SECRET, **claims: Any) -> str:
    return jwt.encode({"sub": "ann", "iat": NOW - 120, "exp": LATER} | claims, secret, "HS256")


class TestALoginOfAToken:
    @pytest.mark.parametrize("make", [jwt_auth, cookie_auth, password_auth])
    def test_it_is_what_the_claims_say(self, make: MakeAuth) -> None:
        token = signed(auth_time=1_700_000_000, sid="session", role="admin")
        login = JWTLogin(make())(token)
        assert login == Login(
            "ann",
            authenticated_at=datetime.fromtimestamp(1_700_000_000, UTC),
            session_id="session",
            valid_until=LATER,
        )

    def test_another_claim_may_name_the_owner(self) -> None:
        login = JWTLogin(jwt_auth(), subject="user_id")
        token = signed(sub="ann@example.org", user_id="ann")
        assert login(token) == Login("ann", valid_until=LATER)
        assert login(signed()) is None

    def test_it_may_be_a_field_of_the_applications_own_class(self) -> None:
        @dataclass
        class OwnToken(Token):
            user_id: int = 0

        token = signed(sub="ann@example.org", user_id=7)
        login = JWTLogin(jwt_auth(token_cls=OwnToken), subject="user_id")
        assert login(token) == Login("7", valid_until=LATER)

    @pytest.mark.parametrize(
        ("settings", "claims", "accepted"),
        [
            ({}, {"secret": "another-secret-that-is-as-long-as-it"}, False),
            ({}, {"iss": "shop"}, True),
            ({"accepted_issuers": ["shop"]}, {"iss": "shop"}, True),
            ({"accepted_issuers": ["shop"]}, {"iss": "other"}, False),
            ({"accepted_audiences": ["api"]}, {"aud": "api"}, True),
            ({"accepted_audiences": ["api"]}, {"aud": "other"}, False),
            (
                {"accepted_audiences": ["api"], "strict_audience": True},
                {"aud": ["api", "other"]},
                False,
            ),
            ({"require_claims": ["jti"]}, {}, False),
            ({"require_claims": ["jti"]}, {"jti": "1"}, True),
            # Litestar accepts a token for something else, since it verifies no audience here.
            ({}, {"aud": "second step"}, False),
            ({}, {"exp": NOW - 60}, False),
            ({}, {"nbf": NOW + HOUR}, False),
            ({"verify_not_before": False}, {"nbf": NOW + HOUR}, True),
        ],
    )
    def test_it_is_verified_with_the_settings_of_the_application(
        self, settings: dict[str, Any], claims: dict[str, Any], accepted: bool
    ) -> None:
        login = JWTLogin(jwt_auth(**settings))
        assert (login(signed(**claims)) is not None) == accepted

    def test_a_list_of_audiences_is_read_as_litestar_reads_it(self) -> None:
        token = signed(aud=["api", "other"])
        try:
            Token.decode(token, SECRET, "HS256", audience=["api"])
        except NotAuthorizedException:
            # The oldest Litestar reads one audience only.
            accepted = False
        else:
            accepted = True
        login = JWTLogin(jwt_auth(accepted_audiences=["api"]))
        assert (login(token) is not None) == accepted

    @pytest.mark.parametrize("text", ["", "x", "a.b.c", "\N{SNOWMAN}"])
    def test_what_is_no_token_is_no_login(self, text: str) -> None:
        assert JWTLogin(jwt_auth())(text) is None


async def revoked(_token: Token, _: ASGIConnection[Any, Any, Any, Any]) -> bool:
    return False


def test_what_it_cannot_honour_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="revoked_token_handler"):
        JWTLogin(jwt_auth(revoked_token_handler=revoked))
    sessions: Any = SessionAuth[Any, Any](
        retrieve_user_handler=lambda _session, _connection: None,
        session_backend_config=CookieBackendConfig(secret=bytes(16)),
    )
    with pytest.raises(ConfigurationError, match="not SessionAuth"):
        JWTLogin(sessions)


async def find_owner(owner_id: str) -> Owner[None] | None:
    return ANN if owner_id == "ann" else None


@get("/mine")
async def mine() -> str:
    return "reached"


@get("/settings")
async def settings() -> str:
    return "reached"


@post("/settings")
async def change_settings() -> str:
    return "reached"


@get("/health", exclude_from_auth=True)
async def health() -> str:
    return "reached"


def application(
    own_auth: BaseJWTAuth[Any, Any], *handlers: Any, **more: Any
) -> tuple[Litestar, LitestarAuth[None]]:
    login = JWTLogin(own_auth)
    authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner, logins=[login])
    auth = LitestarAuth(authenticator, logins=[login], own_auth=own_auth)
    guarded = Router("/", route_handlers=[mine], guards=[auth.require("tasks:read")])
    app = Litestar(
        [guarded, settings, change_settings, health, auth.key_routes(), *handlers],
        plugins=[auth],
        on_app_init=[own_auth.on_app_init],
        logging_config=None,
        **more,
    )
    return app, auth


async def ask(app: Litestar, path: str, *headers: tuple[bytes, bytes]) -> Reply:
    return await send(app, "GET", path.encode(), list(headers))


def bearer(token: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {token}".encode()


@pytest.mark.parametrize("make", [jwt_auth, cookie_auth, password_auth])
async def test_a_handler_is_verified_by_its_guard_or_by_litestar(make: MakeAuth) -> None:
    app, auth = application(make())
    person = await auth.authenticator.authenticate([f"Bearer {signed()}"])
    key = (await auth.authenticator.create_key(person, name="a script")).value.reveal()
    for path in ("/mine", "/settings"):
        assert (await ask(app, path)).status == 401
        assert (await ask(app, path, bearer(signed()))).status == 200
    assert (await ask(app, "/mine", bearer(key))).status == 200
    assert (await ask(app, "/api/keys", bearer(key))).status == 200
    assert (await ask(app, "/settings", bearer(key))).status == 401
    assert (await ask(app, "/health")).status == 200


@pytest.mark.parametrize("make", [cookie_auth, password_auth])
@pytest.mark.parametrize("scheme", ["Bearer ", ""])
async def test_the_cookie_is_a_login(make: MakeAuth, scheme: str) -> None:
    app, _ = application(make(key="session"))
    cookie = (b"cookie", f'session="{scheme}{signed()}"'.encode())
    other = (b"cookie", f'token="{scheme}{signed()}"'.encode())
    for path in ("/mine", "/api/keys"):
        assert (await ask(app, path, cookie)).status == 200
        assert (await ask(app, path, other)).status == 401


@pytest.mark.parametrize("sent_in", ["authorization", "cookie"])
async def test_a_token_that_is_nested_deep_is_refused_and_nothing_is_logged(
    sent_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = application(cookie_auth(key="session"))
    nested = urlsafe_b64encode(
        b'{"alg": "HS256", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}"
    ).decode()
    token = f"{nested}.{signed().partition('.')[2]}"
    header = (
        bearer(token) if sent_in == "authorization" else (b"cookie", f"session={token}".encode())
    )
    reply = await ask(app, "/mine", header)
    assert (reply.status, reply.json["code"]) == (401, "token_invalid")
    assert caplog.records == []


async def test_without_a_cookie_of_its_own_none_is_read() -> None:
    app, _ = application(jwt_auth())
    assert (await ask(app, "/mine", (b"cookie", f"token={signed()}".encode()))).status == 401


async def test_the_audit_and_the_document_say_so() -> None:
    config = OpenAPIConfig(title="Shop", version="1")
    app, _ = application(password_auth(), openapi_config=config)
    audited = {route.path: route.access for route in list_routes(app).routes}
    assert (audited["/mine"], audited["/settings"], audited["/health"]) == (
        "permissions",
        "the application's own guard",
        "public",
    )
    security = app.openapi_schema.to_schema()["paths"]["/mine"]["get"]["security"]
    assert {"BearerToken": []} in security
    assert {"ApiKey": ["tasks:read"]} in security


def test_one_that_is_not_there_leaves_no_handler_open() -> None:
    own_auth = jwt_auth()
    auth = LitestarAuth(
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner), own_auth=own_auth
    )
    with pytest.raises(ConfigurationError, match="declares no policy"):
        Litestar([settings], plugins=[auth], openapi_config=None)


async def test_it_may_stand_on_one_layer() -> None:
    own_auth = jwt_auth()
    auth = LitestarAuth(
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner), own_auth=own_auth
    )
    behind = Router("/behind", route_handlers=[settings], middleware=[own_auth.middleware])
    app = Litestar([behind], plugins=[auth], openapi_config=None, logging_config=None)
    assert (await ask(app, "/behind/settings")).status == 401
    with pytest.raises(ConfigurationError, match="declares no policy"):
        app.register(mine)


async def test_a_session_may_be_the_own_authentication() -> None:
    def find(session: dict[str, Any], _: ASGIConnection[Any, Any, Any, Any]) -> str | None:
        return session.get("user_id")

    own_auth = SessionAuth[Any, Any](
        retrieve_user_handler=find, session_backend_config=CookieBackendConfig(secret=b"x" * 16)
    )
    auth = LitestarAuth(
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner), own_auth=own_auth
    )
    app = Litestar(
        [settings, Router("/", route_handlers=[mine], guards=[auth.require()])],
        plugins=[auth],
        on_app_init=[own_auth.on_app_init],
        logging_config=None,
    )
    assert (await ask(app, "/settings")).status == 401
    assert (await ask(app, "/mine")).json["code"] == "credentials_missing"
    security = app.openapi_schema.to_schema()["paths"]["/mine"]["get"]["security"]
    assert {"sessionCookie": []} in security
