"""FastAPI with the session of a request, which is a dependency of the application."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.asyncio import create_async_engine as create_async
from sqlalchemy.orm import Session
from tests.integrations.adapters import send
from tests.integrations.session_site import Base, Site, User

from msk_auth import Owner, Principal, local_principal
from msk_auth.integrations.fastapi import FastAPIAuth

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=5)


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Site]:
    def make(lease: timedelta | None = None, *, awaits: bool = False) -> Site:
        engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
        return Site("fastapi", engine, lease, awaits=awaits)

    return make


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
async def site(
    request: pytest.FixtureRequest, make_site: Callable[..., Site]
) -> AsyncIterator[Site]:
    site = make_site(awaits=request.param)
    yield site
    await site.close()


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
async def leased(
    request: pytest.FixtureRequest, make_site: Callable[..., Site]
) -> AsyncIterator[Site]:
    site = make_site(LEASE, awaits=request.param)
    yield site
    await site.close()


async def test_a_lease_does_not_share_what_a_session_has_read_before(leased: Site) -> None:
    # Another dependency of the application has read the user before the guard, and the user is disabled in between.
    credential = await leased.key("ada")
    get_session = leased.get_session

    async def used_before() -> AsyncIterator[Any]:
        if leased.async_engine is None:
            with Session(leased.engine, expire_on_commit=False) as session:
                session.held = session.get(User, "ada")  # type: ignore[attr-defined]
                disable()
                yield session
        else:
            async with AsyncSession(leased.async_engine) as async_session:
                async_session.info["held"] = await async_session.get(User, "ada")
                await async_session.commit()
                disable()
                yield async_session

    def disable() -> None:
        leased.write(lambda session: setattr(session.get(User, "ada"), "is_active", False))

    leased.app.dependency_overrides[get_session] = used_before
    assert (await leased.get("/me", credential)).status == 401


async def test_dependency_overrides_reach_the_user_and_the_guard(
    site: Site, tmp_path: Path
) -> None:
    # The application's tests have a database of their own, which is the only one with this user.
    other = create_engine(f"sqlite:///{tmp_path / 'tests.db'}")
    Base.metadata.create_all(other)
    with Session(other) as session, session.begin():
        session.add(User(id="eve", name="Eve of the tests"))
    other_async = create_async(other.url.set(drivername="sqlite+aiosqlite"))

    def session_of_test() -> Iterator[Session]:
        with Session(other) as session:
            yield session

    async def async_session_of_test() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(other_async) as session:
            yield session

    blocks = site.async_engine is None
    replaced = session_of_test if blocks else async_session_of_test
    assert (await site.get("/me", "session-of-eve")).status == 401
    site.queries.clear()
    site.app.dependency_overrides[site.get_session] = replaced
    reply = await site.get("/me", "session-of-eve")
    assert reply.json == {"name": "Eve of the tests", "attached": True}
    assert (await site.get("/me", "session-of-ada")).status == 401
    assert site.queries == []
    await other_async.dispose()
    other.dispose()


async def test_a_replaced_principal_loads_its_own_user(site: Site) -> None:
    bob = local_principal(
        Owner("bob", frozenset({"tasks:read"}), None), at=site.auth.authenticator.clock.now()
    )
    for guard in (site.auth.principal, site.auth.require("tasks:read")):
        assert guard.dependency is not None
        site.app.dependency_overrides[guard.dependency] = lambda: bob
    assert (await site.get("/me", "nothing")).json == {"name": "Bob", "attached": True}


@pytest.mark.parametrize("lease", [None, LEASE], ids=["no lease", "leased"])
async def test_concurrent_requests_never_share_a_session(
    make_site: Callable[..., Site], lease: timedelta | None
) -> None:
    site = make_site(lease)
    credential = await site.key("ada")
    seen: list[tuple[int, int]] = []
    # Both requests have their sessions before either of them is verified.
    both = threading.Barrier(2, timeout=60)
    site.entered = lambda: both.wait() and None

    @site.app.get("/concurrent")
    def concurrent(
        session: Annotated[Any, Depends(site.get_session)],
        user: Annotated[User, site.auth.user()],
    ) -> None:
        assert user in session
        both.wait()
        seen.append((id(session), id(user)))
        both.wait()

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(site.get, "/concurrent", credential)
    assert len(seen) == 2
    assert len({session for session, _ in seen}) == 2
    assert len({user for _, user in seen}) == 2
    await site.close()


async def test_a_client_chooses_no_session(site: Site) -> None:
    """What FastAPI does not know as a dependency it takes from the query."""
    app, auth = FastAPI(), FastAPIAuth(site.auth.authenticator)

    @app.get("/principal")
    def principal(principal: Annotated[Principal[None], auth.principal]) -> str:
        return principal.owner.id

    app.include_router(auth.key_routes(prefix="/keys"))
    auth.install(app)
    header = (b"authorization", b"Bearer session-of-ada")
    # The key routes refuse each parameter that they do not have.
    for each, path, status in (
        (app, "/principal", 200),
        (app, "/keys", 422),
        (site.app, "/keys", 422),
    ):
        reply = await send(each, "GET", f"{path}?session=mine".encode(), [header])
        assert reply.status == status
        document = await send(each, "GET", b"/openapi.json")
        operation = document.json["paths"][path]["get"]
        assert "session" not in {one["name"] for one in operation.get("parameters", [])}


async def test_an_adapter_that_gets_its_authenticator_later(make_site: Callable[..., Site]) -> None:
    site = make_site()
    auth: FastAPIAuth[None] = FastAPIAuth(session=site.get_session)
    app = FastAPI()

    @app.get("/me")
    def me(user: Annotated[User, auth.user()]) -> str:
        return user.name

    auth.install(app, site.given)
    header = (b"authorization", b"Bearer session-of-ada")
    reply = await send(app, "GET", b"/me", [header])
    assert (reply.status, reply.json) == (200, "Ada")
    assert len(site.queries) == 1
    await site.close()
