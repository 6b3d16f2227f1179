"""A proxy's token in a header of its own is a login by the adapter's `logins`, as the guide shows it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import HTTPConnection
from tests.core.support import FrozenClock
from tests.tokens.shapes import SHAPES, Shape, T

from msk_auth import Authenticator, ExternalIdentity, Login, Owner
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.memory import MemoryKeyStore

HEADERS = {
    "Cf-Access-Jwt-Assertion": SHAPES["Cloudflare Access"],
    "X-Goog-Iap-Jwt-Assertion": SHAPES["Google IAP"],
}
MACHINES: dict[str, dict[str, Any]] = {
    "Cf-Access-Jwt-Assertion": {"sub": "", "identity_nonce": None, "common_name": "ci.access"},
    "X-Goog-Iap-Jwt-Assertion": {"email": "ci@p.iam.gserviceaccount.com"},
}
SAME_ORIGIN, OTHER_SITE = {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}


def owner_of(subject: str) -> Owner[str]:
    return Owner(subject, frozenset({"tasks:read"}), subject)


def find_external_owner(identity: ExternalIdentity) -> Owner[str]:
    return owner_of(identity.subject)


@pytest.fixture(params=HEADERS)
def proxied(request: pytest.FixtureRequest) -> tuple[str, Shape, TestClient]:
    header: str = request.param
    clock = FrozenClock()
    behind_proxy = Authenticator(
        MemoryKeyStore(),
        find_owner=lambda _: None,
        issuers=[HEADERS[header].made()],
        find_external_owner=find_external_owner,
        clock=clock,
    )

    def login_at_proxy(connection: HTTPConnection) -> Login | None:
        token = connection.headers.get(header)
        if token is None:
            return None
        principal = behind_proxy.authenticate([f"Bearer {token}"])
        return Login(
            principal.owner.id,
            valid_until=principal.expires_at,
            interactive=principal.is_interactive,
        )

    authenticator = Authenticator(MemoryKeyStore(), find_owner=owner_of, clock=clock)
    auth = FastAPIAuth(authenticator, logins=[login_at_proxy])
    app = auth.install(FastAPI())
    app.include_router(auth.key_routes(prefix="/api/keys"))
    # Not as a context: that of Starlette 0.37 leaves streams open.
    return header, HEADERS[header], TestClient(app)


def test_a_person_behind_the_proxy_makes_keys(proxied: tuple[str, Shape, TestClient]) -> None:
    header, shape, client = proxied
    made = client.post(
        "/api/keys", json={"name": "ci"}, headers={header: shape.token(), **SAME_ORIGIN}
    )
    assert made.status_code == 201
    # A key counts before the header, and makes no keys.
    key = {"Authorization": f"Bearer {made.json()['key']}", header: shape.token()}
    refused = client.post("/api/keys", json={"name": "x"}, headers={**key, **SAME_ORIGIN})
    assert (refused.status_code, refused.json()["code"]) == (403, "interactive_required")


def test_what_is_no_persons_request_makes_none(proxied: tuple[str, Shape, TestClient]) -> None:
    header, shape, client = proxied
    person, machine = shape.token(), shape.token(**MACHINES[header])
    expired = shape.token(iat=T - 900, exp=T - 600, nbf=None)
    for token, where, expected in (
        (machine, SAME_ORIGIN, (403, "interactive_required")),
        (person, OTHER_SITE, (403, "cross_origin_refused")),
        (shape.token(aud="other"), SAME_ORIGIN, (401, "token_invalid")),
        (expired, SAME_ORIGIN, (401, "token_expired")),
        (person[:-8], SAME_ORIGIN, (401, "token_invalid")),
    ):
        answer = client.post("/api/keys", json={"name": "x"}, headers={header: token, **where})
        assert (answer.status_code, answer.json()["code"]) == expected
    # Nor is it one in the header of bearers: this authenticator knows no issuer.
    as_bearer = {"Authorization": f"Bearer {person}"}
    assert client.post("/api/keys", json={"name": "x"}, headers=as_bearer).status_code == 401
