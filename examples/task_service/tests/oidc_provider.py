"""An OpenID Connect provider that listens on this machine, built on authlib's authorization server.

It logs in :attr:`TestProvider.person`, without a form unless one is wanted: what is tested is what the service does.
"""

from __future__ import annotations

import json
import secrets
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import AuthorizationCodeMixin
from authlib.oidc.core.grants import OpenIDCode
from examples.task_service.tests.service_support import BASE_URL, Service
from flask import Flask, redirect, request
from joserfc import jws
from joserfc.jwk import ECKey, KeySet
from werkzeug.serving import WSGIRequestHandler, make_server

from task_service import provider_login

CLIENT_ID, CLIENT_SECRET = "tasks", "a secret of the service"
_COOKIE = "provider_session"
_FORM = """<!doctype html>
<html lang="en">
<title>Example ID</title>
<link rel="icon" href="data:,">
<form method="post">
<label>Name <input name="name" required></label>
<button>Sign in</button>
</form>
"""
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


@dataclass
class _Client(ClientMixin):
    redirect_uri: str
    method: str
    secret: str

    client_id: str = CLIENT_ID

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == self.redirect_uri

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class _Code(AuthorizationCodeMixin):
    code: str
    asked: dict[str, str]
    person: dict[str, Any]
    auth_time: int | None
    auth_method: str = ""
    code_challenge: str = ""
    code_challenge_method: str = ""

    def get_redirect_uri(self) -> str:
        return self.asked["redirect_uri"]

    def get_scope(self) -> str:
        return self.asked["scope"]

    def get_nonce(self) -> str:
        return self.asked["nonce"]

    def get_auth_time(self) -> int | None:
        return self.auth_time

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class TestProvider:
    """The provider.

    Attributes:
        issuer: Its `iss`.
        person: The claims of the person who is logged in there; those of the ID token itself may be overridden.
        auth_time: When they logged in, in seconds since the epoch; None leaves it out.
        asked: The parameters of each authorization request.
        metadata: Members of the discovery document that replace the true ones.
        refuses: The error that it answers instead of a code.
        has_form: Whether a browser without a session there gets a form first; its logout ends the session.
        logouts: The parameters of each logout.
    """

    __test__ = False

    issuer: str = ""
    person: dict[str, Any] = field(default_factory=lambda: {"sub": "1001", "groups": ["tasks"]})
    auth_time: int | None = field(default_factory=lambda: int(time.time()))
    asked: list[dict[str, str]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    refuses: str | None = None
    has_form: bool = False
    logouts: list[dict[str, str]] = field(default_factory=list)
    client_method: str = "client_secret_basic"
    client_secret: str = CLIENT_SECRET
    algorithm: str = "ES256"
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256", {"kid": "1"}))
    signs_with: Any = None
    more_keys: list[Any] = field(default_factory=list)
    codes: dict[str, _Code] = field(default_factory=dict)

    def visit(self, url: str) -> str:
        """What a browser does there; returns the address to which it is sent back."""
        # It has no TLS, for which a client would read the machine's roots.
        answer = httpx2.get(url, trust_env=False, verify=False)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    def logout_token(self, *, key: Any = None, **changes: Any) -> str:
        """What the provider sends when a session there has ended (OpenID Connect Back-Channel Logout 1.0, section 2.4).

        Args:
            key: Another one than its own.
            changes: Claims, and `typ`, `alg` and `kid` of the header. None leaves one out.
        """
        now = int(time.time())
        header = {"typ": "logout+jwt", "alg": "ES256", "kid": "1"}
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 120,
            "jti": secrets.token_hex(8),
            "events": {LOGOUT_EVENT: {}},
        }
        header |= {name: changes.pop(name) for name in list(changes) if name in header}
        claims |= changes
        return jws.serialize_compact(
            {name: value for name, value in header.items() if value is not None},
            json.dumps({name: value for name, value in claims.items() if value is not None}),
            self.key if key is None else key,
            [header["alg"]],
        )

    def application(self, redirect_uri: str) -> Flask:
        app = Flask("provider")
        provider = self

        class Grant(AuthorizationCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

            def save_authorization_code(self, code: str, request: Any) -> None:
                asked = dict(request.payload.data)
                provider.codes[code] = _Code(
                    code,
                    asked,
                    provider.person,
                    provider.auth_time,
                    code_challenge=asked["code_challenge"],
                    code_challenge_method=asked["code_challenge_method"],
                )

            def query_authorization_code(self, code: str, client: Any) -> _Code | None:
                return provider.codes.get(code)

            def delete_authorization_code(self, authorization_code: _Code) -> None:
                del provider.codes[authorization_code.code]

            def authenticate_user(self, authorization_code: _Code) -> dict[str, Any]:
                return authorization_code.person

        class Tokens(OpenIDCode):
            def exists_nonce(self, nonce: str, request: Any) -> bool:
                return False

            def get_client_algorithm(self, client: Any) -> str:
                return provider.algorithm

            def get_client_claims(self, client: Any) -> dict[str, Any]:
                now = int(time.time())
                return {"iss": provider.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300}

            def get_compatible_claims(self, request: Any) -> dict[str, Any]:
                claims: dict[str, Any] = super().get_compatible_claims(request)
                # authlib adds one where there is none.
                del claims["auth_time"]
                return claims

            def get_encode_header(self, client: Any) -> dict[str, str]:
                return {"alg": provider.algorithm, "kid": "1"}

            def resolve_client_private_key(self, client: Any) -> Any:
                return provider.signs_with or provider.key

            def generate_user_info(self, user: dict[str, Any], scope: str) -> dict[str, Any]:
                return user

        server = AuthorizationServer(
            app,
            query_client=lambda _id: _Client(
                redirect_uri, provider.client_method, provider.client_secret
            ),
            save_token=lambda _token, _request: None,
        )
        server.register_grant(Grant, [Tokens(require_nonce=True), CodeChallenge(required=True)])

        @app.get("/.well-known/openid-configuration")
        def discovery() -> dict[str, Any]:
            return {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                "end_session_endpoint": f"{self.issuer}/logout",
                "token_endpoint_auth_methods_supported": [self.client_method],
                "id_token_signing_alg_values_supported": ["ES256"],
                **self.metadata,
            }

        @app.get("/jwks")
        def jwks() -> Any:
            own = KeySet([self.key]).as_dict(private=False)
            return {"keys": [*own["keys"], *self.more_keys]}

        @app.get("/authorize")
        def authorize() -> Any:
            if self.has_form and _COOKIE not in request.cookies:
                return _FORM
            asked = dict(parse_qsl(urlsplit(request.url).query))
            self.asked.append(asked)
            if self.refuses is not None:
                back = f"{asked['redirect_uri']}?error={self.refuses}&state={asked['state']}"
                return "", 302, {"Location": back}
            grant = server.get_consent_grant(end_user=self.person)
            return server.create_authorization_response(grant_user=self.person, grant=grant)

        @app.post("/authorize")
        def sign_in() -> Any:
            answer = redirect(request.full_path, 303)
            answer.set_cookie(_COOKIE, request.form["name"])
            return answer

        @app.get("/logout")
        def log_out() -> Any:
            asked = dict(parse_qsl(urlsplit(request.url).query))
            self.logouts.append(asked)
            answer = redirect(asked["post_logout_redirect_uri"], 303)
            answer.delete_cookie(_COOKIE)
            return answer

        @app.post("/token")
        def token() -> Any:
            return server.create_token_response()

        return app


class _Quiet(WSGIRequestHandler):
    """Logs no requests: an ID token is in the address of a logout, and the tests search this process's log for tokens."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def at_provider(provider: TestProvider) -> dict[str, Any]:
    """The settings of a service in which all people of the provider may log in."""
    return {
        "base_url": BASE_URL,
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_users": "*",
    }


async def come_from(provider: TestProvider, service: Service) -> httpx2.Response:
    """The answer to a browser that was at the provider to log in."""
    begun = await service.caller().get("/login/oidc")
    path = provider.visit(begun.headers["location"]).removeprefix(BASE_URL)
    pending = begun.headers["set-cookie"].partition(";")[0]
    return await service.caller().get(path, headers={"cookie": pending})


def wait_for_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service wait as long for the provider as a machine with more to do may take."""
    monkeypatch.setattr(provider_login, "_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr("msk_auth.tokens.keysets._FETCH_SECONDS", 60.0)
    monkeypatch.setattr("msk_auth.core.tokens.PENDING_SECONDS", 60.0)


@contextmanager
def running_provider(
    redirect_uri: str, tls: ssl.SSLContext | None = None
) -> Iterator[TestProvider]:
    """A provider that knows the service by one redirect address.

    Args:
        redirect_uri: The address.
        tls: Its certificate; without one it has no TLS.
    """
    provider = TestProvider()
    application = provider.application(redirect_uri)
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=_Quiet, ssl_context=tls
    )
    host = "http://127.0.0.1" if tls is None else "https://localhost"
    provider.issuer = f"{host}:{server.port}"
    # It looks every so often whether it is to end.
    serving = threading.Thread(target=server.serve_forever, args=[0.01], name="identity provider")
    serving.start()
    try:
        yield provider
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Proxy(BaseHTTPRequestHandler):
    passed: list[str]

    def do_GET(self) -> None:
        self.passed.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = httpx2.request(
            self.command, self.path, headers=headers, content=body, trust_env=False, verify=False
        )
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_GET  # noqa: N815 - the name is the base class's

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@contextmanager
def running_proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy without TLS: its address, and the requests that it passed on."""
    passed: list[str] = []
    handler = type("Handler", (_Proxy,), {"passed": passed})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.01], name="proxy")
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", passed
        finally:
            server.shutdown()
            serving.join()
