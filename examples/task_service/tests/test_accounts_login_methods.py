"""Who can log in is decided by the settings in force: logins of earlier settings open nothing and count for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.task_service.tests.accounts_support import (
    PASSWORD,
    World,
    compose,
)
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    problem,
    running_service,
)
from sqlalchemy import insert

from task_service.accounts.login_methods import LoginMethods
from task_service.accounts.users import User
from task_service.db import schema
from task_service.errors import LastAdministrator

pytestmark = pytest.mark.anyio

ISSUER, EARLIER = "https://login.example.com", "https://old.example.com"
BY_PASSWORD = LoginMethods()
BY_PROVIDER = LoginMethods(passwords=False, issuer=ISSUER)
BY_BOTH = LoginMethods(issuer=ISSUER)


async def _person(it: World, name: str, role: str, issuer: str = ISSUER) -> User:
    """A user who logs in at a provider."""
    async with it.accounts.change() as change:
        user = await it.users.add(change, name, (role,), external_login=True)
        await change.connection.execute(
            insert(schema.identities).values(
                issuer=issuer, subject=name, user_id=user.id, created_at=it.clock.now()
            )
        )
    return user


async def _session_at_provider(it: World, user: User) -> str:
    config = await it.config.current()
    async with it.accounts.change() as change:
        begun = await it.sessions.start(change, user, config, id_token="an ID token")
    return begun.session_id


def _with(it: World, methods: LoginMethods) -> World:
    """A process with other settings on the same database."""
    return compose(it.db, it.passwords, methods)


@pytest.mark.parametrize(
    ("methods", "last"),
    [
        (BY_PASSWORD, {"local"}),
        (BY_PROVIDER, {"external"}),
        (BY_BOTH, set()),
        (LoginMethods(passwords=False, issuer=EARLIER), {"former"}),
    ],
    ids=["passwords", "provider", "both", "another provider"],
)
async def test_the_last_administrator_is_one_who_can_log_in_by_the_present_settings(
    it: World, methods: LoginMethods, last: set[str]
) -> None:
    users = [
        await it.user("local", "admin"),
        await _person(it, "external", "admin"),
        await _person(it, "former", "admin", EARLIER),
    ]
    process = _with(it, methods)
    stayed = set[str]()
    for change in ({"roles": ["user"]}, {"disabled": True}):
        for user in users:
            try:
                await process.users.change(user.id, **change)  # type: ignore[arg-type]
            except LastAdministrator:
                stayed.add(user.username)
            await process.users.change(user.id, roles=["admin"], disabled=False)
    assert stayed == last


async def test_the_last_two_administrators_who_can_log_in_cannot_both_go(it: World) -> None:
    local, external = await it.user("local", "admin"), await _person(it, "external", "admin")
    process = _with(it, BY_BOTH)
    await process.users.change(local.id, roles=["user"])
    with pytest.raises(LastAdministrator):
        await process.users.change(external.id, disabled=True)


@pytest.mark.parametrize(
    ("methods", "admitted"),
    [
        (BY_PASSWORD, {"local", "local of a person"}),
        (BY_PROVIDER, {"external"}),
        (BY_BOTH, {"local", "local of a person", "external"}),
        (LoginMethods(passwords=False, issuer=EARLIER), {"former"}),
    ],
    ids=["passwords", "provider", "both", "another provider"],
)
async def test_a_session_counts_while_the_settings_admit_its_kind(
    it: World, methods: LoginMethods, admitted: set[str]
) -> None:
    await it.user("ann")
    person = await _person(it, "bob", "user")
    former = await _person(it, "cem", "user", EARLIER)
    link = await it.invitations.create(person.id)
    await it.invitations.redeem(link.token, PASSWORD)
    sessions = {
        "local": (await it.login.log_in("ann", PASSWORD)).session_id,
        "local of a person": (await it.login.log_in("bob", PASSWORD)).session_id,
        "external": await _session_at_provider(it, person),
        "former": await _session_at_provider(it, former),
    }
    process = _with(it, methods)
    found = {
        name: await process.sessions.find_session(session_id)
        for name, session_id in sessions.items()
    }
    assert {name for name, session in found.items() if session is not None} == admitted
    listed = [
        session.id
        for row in await it.rows("users")
        for session in await process.sessions.list_open(row["id"])
    ]
    assert sorted(listed) == sorted(sessions[name] for name in admitted)


async def test_passwords_switched_off_end_logins_and_links_at_the_next_start(
    template: Path, tmp_path: Path
) -> None:
    async with running_service(template, tmp_path / "on", shared_routes=True) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        token = ada.token
        key = (await ada.new_key())["key"]
        ulf = await service.services.users.get_by_name("ulf")
        link = await service.services.invitations.create(ulf.id)
        person = {"token": link.token}
        expect(await ada.post("/api/auth/password-link", person), 200)
    settings = {
        "password_login": "off",
        # It does not answer, which changes nothing.
        "oidc_issuer": "http://127.0.0.1:1",
        "oidc_client_id": "tasks",
        "oidc_users": "*",
        "oidc_administrators": "groups=admins",
    }
    async with running_service(tmp_path / "on", tmp_path / "off", **settings) as service:
        assert problem(await service.caller(token).get("/api/auth/me")) == (401, "token_revoked")
        stranger = service.caller()
        off = (403, "password_login_off")
        assert problem(await stranger.post("/api/auth/password-link", person)) == off
        chosen = person | {"password": "a long enough password"}
        assert problem(await stranger.post("/api/auth/set-password", chosen)) == off
        # A key is no login.
        expect(await service.caller(key).get("/api/auth/me"), 200)
