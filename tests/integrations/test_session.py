"""The session of a request: the look-up that decides about a request also loads the application's user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.core.support import external_token
from tests.integrations.adapters import ADAPTERS, adapter_of
from tests.integrations.session_site import Site, User, load_user, owner_of

from msk_auth import Authenticator, Users
from msk_auth.errors import ConfigurationError
from msk_auth.http.admission import users_of
from msk_auth.stores.memory import MemoryKeyStore

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=5)
# Flask is synchronous.
KINDS = [
    (name, awaits) for name in ADAPTERS for awaits in (False, True) if name != "flask" or not awaits
]

with_every_site = pytest.mark.parametrize(
    ("adapter", "awaits"),
    KINDS,
    ids=[f"{name} {'awaiting' if awaits else 'blocking'}" for name, awaits in KINDS],
)


@pytest.fixture
async def make_site(
    tmp_path: Path, adapter: str, *, awaits: bool
) -> AsyncIterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(lease: timedelta | None = None) -> Site:
        engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
        made.append(Site(adapter, engine, lease, awaits=awaits))
        return made[-1]

    yield make
    for site in made:
        await site.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@with_every_site
async def test_one_query_per_request(site: Site) -> None:
    key, login = [await site.credential(kind, "ada") for kind in ("key", "login")]
    for n, credential in enumerate([key, key, login, login, external_token()], 1):
        reply = await site.get("/me", credential)
        assert reply.json == {"name": "Ada", "attached": True}
        assert len(site.queries) == n
        assert len(site.sessions) == n
    # A guard alone makes one, too.
    site.queries.clear()
    assert (await site.get("/principal", key)).json == {"id": "ada", "user": None}
    assert len(site.queries) == 1


@with_every_site
@pytest.mark.parametrize("kind", ["key", "login"])
async def test_one_query_per_request_under_a_lease(
    make_site: Callable[..., Site], kind: str
) -> None:
    site = make_site(LEASE)
    credential = await site.credential(kind, "ada")
    # The verification that the lease shares is read in a session of its own, once.
    assert (await site.get("/me", credential)).json == {"name": "Ada", "attached": True}
    site.queries.clear()
    for n in range(1, 4):
        reply = await site.get("/me", credential)
        assert reply.json == {"name": "Ada", "attached": True}
        assert len(site.queries) == n


@with_every_site
@pytest.mark.parametrize("kind", ["key", "login"])
async def test_a_disabled_or_deleted_user_is_refused_at_once(site: Site, kind: str) -> None:
    credential = await site.credential(kind, "ada")
    code = "owner_disabled" if kind == "key" else "token_revoked"
    assert (await site.get("/me", credential)).status == 200
    site.disable("ada")
    reply = await site.get("/me", credential)
    assert (reply.status, reply.json["code"]) == (401, code)
    site.write(lambda session: setattr(session.get(User, "ada"), "is_active", True))
    assert (await site.get("/me", credential)).status == 200
    site.write(lambda session: session.delete(session.get(User, "ada")))
    reply = await site.get("/me", credential)
    assert (reply.status, reply.json["code"]) == (401, code)


@with_every_site
@pytest.mark.parametrize("kind", ["key", "login"])
async def test_a_disabled_user_is_refused_once_the_leases_have_ended(
    make_site: Callable[..., Site], kind: str
) -> None:
    site = make_site(timedelta(milliseconds=50))
    credential = await site.credential(kind, "ada")
    assert (await site.get("/me", credential)).status == 200
    site.disable("ada")
    await site.await_lease_expiry()
    assert (await site.get("/me", credential)).status == 401


@with_every_site
async def test_what_is_verified_again_is_read_anew(site: Site) -> None:
    reply = await site.get("/again", await site.key("ada"))
    assert (reply.status, reply.json["code"]) == (401, "owner_disabled")


@with_every_site
async def test_key_routes_hold_no_session(site: Site) -> None:
    reply = await site.get("/keys", "session-of-ada")
    assert (reply.status, reply.json["items"]) == (200, [])
    assert site.sessions == []


@with_every_site
async def test_a_client_chooses_no_session(site: Site) -> None:
    query = "session=mine&db_session=mine&user=eve&find_session=mine"
    reply = await site.get(f"/me?{query}", "session-of-ada")
    assert reply.json == {"name": "Ada", "attached": True}
    # The key routes refuse each parameter that they do not have.
    refused = await site.get(f"/keys?{query}", "session-of-ada")
    names = {each["field"] for each in refused.json["errors"]}
    assert names == {"session", "db_session", "user", "find_session"}
    assert len(site.sessions) == 1


@pytest.mark.skipif("litestar" not in ADAPTERS, reason="for Litestar")
@pytest.mark.parametrize(("adapter", "awaits"), [("litestar", True)])
async def test_the_document_of_litestar_names_no_session(site: Site) -> None:
    document = (await site.get("/schema/openapi.json", "session-of-ada")).json
    assert "/me" in document["paths"]
    for path in ("/me", "/principal"):
        assert "parameters" not in document["paths"][path]["get"]


@pytest.mark.skipif("litestar" not in ADAPTERS, reason="for Litestar")
@pytest.mark.parametrize("lease", [None, LEASE], ids=["no lease", "leased"])
@pytest.mark.parametrize(("adapter", "awaits"), [("litestar", True), ("litestar", False)])
async def test_own_guards_of_litestar_read_the_user_in_the_session(
    make_site: Callable[..., Site], lease: timedelta | None
) -> None:
    site = make_site(lease)
    for credential in ("session-of-ada", await site.key("ada")):
        await site.get("/own", credential)
        site.queries.clear()
        reply = await site.get("/own", credential)
        assert reply.json == {"name": "Ada", "attached": True}
        assert len(site.queries) == 1


# FastAPI calls its dependencies in any case, and what they raise is the application's.
FINDING = [kind for kind in KINDS if kind[0] != "fastapi"]


@pytest.mark.parametrize(("adapter", "awaits"), FINDING)
async def test_a_refused_credential_opens_no_session(site: Site) -> None:
    for credential in ("msk_malformed", "nothing"):
        assert (await site.get("/me", credential)).status == 401
    assert site.sessions == []


@pytest.mark.parametrize(("adapter", "awaits"), FINDING)
async def test_a_session_that_cannot_be_found_refuses_the_request(site: Site) -> None:
    def fail() -> None:
        raise LookupError("no session here")

    site.entered = fail
    reply = await site.get("/me", "session-of-ada")
    assert (reply.status, reply.json["code"]) == (503, "store_unavailable")
    assert reply.header("retry-after") is not None


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_users_without_a_session(adapter: str) -> None:
    # FastAPI and Litestar read the type of the user from the handler.
    given = [] if adapter in {"fastapi", "litestar"} else [users()]
    with pytest.raises(ConfigurationError, match=r"session=…"):
        adapter_of(adapter).user(*given)


def test_other_users_than_those_of_the_authenticator() -> None:
    authenticator = Authenticator(MemoryKeyStore(), find_owner=users())
    with pytest.raises(ConfigurationError, match=r"find_owner=Users\(load_user"):
        users_of(authenticator, users())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_session_without_users(adapter: str) -> None:
    authenticator: Authenticator[None] = Authenticator(MemoryKeyStore(), find_owner=lambda _: None)
    with pytest.raises(ConfigurationError, match="find_owner=Users"):
        adapter_of(adapter, authenticator, session=lambda *_: None)


def users() -> Users[Session, str, User, None]:
    return Users(load_user, owner_of, Session)
