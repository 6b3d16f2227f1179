"""A service account keeps working while the people who look after it come and go, on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.cases import refused_with
from tests.stores.support import async_engine_on, engine_on, sqlite_url

from msk_auth import AsyncAuthenticator, Authenticator, CredentialKind, KeyStatus, Owner, Principal
from msk_auth.errors import PermissionDenied
from msk_auth.events import KeyEvent
from msk_auth.keys import CreatedKey
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore
from msk_auth.testing import BackgroundLoop, FrozenClock

BOT = "svc:deploy"
HOUR = timedelta(hours=1)
AUDIT = Table(
    "audit_of_accounts",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("what", String(64), nullable=False),
    Column("person", String(64), nullable=True),
    Column("owner", String(64), nullable=False),
)
KINDS = [
    f"{driver} {database}"
    for driver in ("blocking", "awaiting")
    for database in ("memory", "sqlite", "postgres", "mysql")
]

Row = tuple[str, str | None, str]


def entry(event: Any) -> Row:
    """What the application's audit log has of an event: what happened, by whom, and whose key it was."""
    person = None if event.principal is None else event.principal.owner.id
    return event.action, person, event.record.owner_id


class Site:
    """An application with a service account, two people, and an audit log in the store's transactions."""

    def __init__(self, driver: str, database: str, url: Any, stack: ExitStack) -> None:
        self.clock = FrozenClock()
        self.owners = {
            name: Owner(name, {"tasks:read", "tasks:run"}, name) for name in ("ann", "ben", BOT)
        }
        self.team = {"ann"}
        self.remembered: list[Row] = []
        self._plain = None
        if database != "memory":
            self._plain = create_engine(url)
            stack.callback(self._plain.dispose)
        self._loop = BackgroundLoop() if driver == "awaiting" else None
        if self._loop is not None:
            stack.enter_context(self._loop)
        self.auth = self._make(driver, database, url, stack)
        if self._plain is not None:
            AUDIT.metadata.drop_all(self._plain)
            AUDIT.metadata.create_all(self._plain)
            stack.callback(AUDIT.metadata.drop_all, self._plain)

    def _make(self, driver: str, database: str, url: Any, stack: ExitStack) -> Any:
        if driver == "blocking":
            store: Any = MemoryKeyStore(on_change=self._remember)
            if database != "memory":
                engine = stack.enter_context(engine_on(url))
                store = SQLAlchemyKeyStore(engine, on_change=self._write)
            return Authenticator(
                store,
                find_owner=self.owners.get,
                may_act_for=self._may_act_for,
                clock=self.clock,
            )
        assert self._loop is not None

        async def make() -> Any:
            awaiting: Any = AsyncMemoryKeyStore(on_change=self._remember_later)
            if database != "memory":
                engine = async_engine_on(url)
                awaiting = AsyncSQLAlchemyKeyStore(engine, on_change=self._write_later)
                stack.callback(self._run, engine.dispose)
                stack.callback(self._run, awaiting.aclose)

            async def find_owner(owner_id: str) -> Any:
                return self.owners.get(owner_id)

            async def may_act_for(principal: Principal[Any], owner: Owner[Any]) -> Any:
                return self._may_act_for(principal, owner)

            return AsyncAuthenticator(
                awaiting, find_owner=find_owner, may_act_for=may_act_for, clock=self.clock
            )

        return self._loop.run(make())

    def _run(self, function: Callable[[], Any]) -> None:
        assert self._loop is not None
        self._loop.run(function())

    def _may_act_for(self, principal: Principal[Any], owner: Owner[Any]) -> Any:
        return owner.permissions if owner.id == BOT and principal.owner.id in self.team else None

    def _remember(self, _connection: None, event: KeyEvent) -> None:
        self.remembered.append(entry(event))

    async def _remember_later(self, _connection: None, event: KeyEvent) -> None:
        self.remembered.append(entry(event))

    def _write(self, connection: Connection, event: KeyEvent) -> None:
        what, person, owner = entry(event)
        connection.execute(insert(AUDIT).values(what=what, person=person, owner=owner))

    async def _write_later(self, connection: AsyncConnection, event: KeyEvent) -> None:
        await connection.run_sync(self._write, event)

    def audited(self) -> list[Row]:
        if self._plain is None:
            return self.remembered
        with self._plain.connect() as connection:
            rows = connection.execute(
                select(AUDIT.c.what, AUDIT.c.person, AUDIT.c.owner).order_by(AUDIT.c.id)
            )
            return [(row.what, row.person, row.owner) for row in rows]

    def call(self, method: str, *args: object, **options: object) -> Any:
        result = getattr(self.auth, method)(*args, **options)
        return result if self._loop is None else self._loop.run(result)

    def login(self, person: str) -> Principal[Any]:
        owner = self.owners[person]
        now = self.clock.now()
        return Principal(owner, CredentialKind.INTERACTIVE, owner.permissions, now)

    def serve(self, *keys: CreatedKey) -> None:
        """A request of the service with each of the keys; none is refused."""
        for key in keys:
            principal = self.call("authenticate", [f"Bearer {key.value.reveal()}"])
            assert (principal.owner.id, principal.permissions) == (
                BOT,
                {"tasks:read", "tasks:run"},
            )


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    driver, database = request.param.split()
    url = None
    if database == "sqlite":
        url = sqlite_url(tmp_path)
    elif database != "memory":
        url = request.getfixturevalue(f"{database}_url")
    with ExitStack() as stack:
        yield Site(driver, database, url, stack)


def test_the_person_who_made_the_keys_leaves_and_no_request_of_the_service_is_refused(
    site: Site,
) -> None:
    ann = site.login("ann")
    first = site.call("create_key", ann, name="first", on_behalf_of=BOT)
    second = site.call("create_key", ann, name="second", on_behalf_of=BOT)
    own = site.call("create_key", ann, name="her own")
    site.serve(first, second)

    # The handover, and Ann's account is deleted with all that is hers.
    site.team.add("ben")
    site.team.discard("ann")
    site.serve(first, second)
    del site.owners["ann"]
    site.call("await_lease_expiry")
    assert site.call("forget_owner", "ann") == 1
    site.serve(first, second)
    for method, args, options in (
        ("create_key", (), {"name": "third"}),
        ("rotate_key", (first.record.id,), {}),
        ("revoke_key", (first.record.id,), {}),
        ("list_keys", (), {}),
    ):
        # A request of hers that was under way, with a login from before.
        with refused_with("token_revoked"):
            site.call(method, ann, *args, on_behalf_of=BOT, **options)
    site.serve(first, second)

    # Ben looks after the account, and no request of the service is refused on the way.
    ben = site.login("ben")
    listed = site.call("list_keys", ben, status=KeyStatus.ACTIVE, on_behalf_of=BOT)
    assert {key.id for key in listed.items} == {first.record.id, second.record.id}
    successor = site.call("rotate_key", ben, first.record.id, overlap=HOUR, on_behalf_of=BOT)
    site.serve(first, successor, second)
    site.clock.advance(HOUR)
    site.serve(successor, second)
    site.call("revoke_key", ben, first.record.id, on_behalf_of=BOT)
    site.serve(successor, second)

    assert site.audited() == [
        ("created", "ann", BOT),
        ("created", "ann", BOT),
        ("created", "ann", "ann"),
        ("revoked", None, "ann"),
        ("rotated", "ben", BOT),
        ("revoked", "ben", BOT),
    ]
    assert own.record.owner_id == "ann"


def test_a_person_who_left_the_team_and_stays_has_no_hand_in_the_keys(site: Site) -> None:
    ann = site.login("ann")
    key = site.call("create_key", ann, name="deploy", on_behalf_of=BOT)
    site.team = {"ben"}
    for method in ("rotate_key", "revoke_key", "delete_key", "get_key"):
        with pytest.raises(PermissionDenied):
            site.call(method, ann, key.record.id, on_behalf_of=BOT)
    site.serve(key)
    assert site.audited() == [("created", "ann", BOT)]
