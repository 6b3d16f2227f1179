"""No credential is written over one that was acknowledged meanwhile, or for a login that has ended (ASVS 5.0, 7.4).

A password takes tens of milliseconds to verify and to hash. Each test lets something be acknowledged in that pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import (
    OTHER_PASSWORD,
    PASSWORD,
    World,
    compose,
    principal,
)
from examples.task_service.tests.service_support import refused_with
from sqlalchemy import update

from msk_auth import Principal
from msk_auth.errors import CredentialRefused, InputInvalid
from task_service.accounts.users import User
from task_service.db import schema
from task_service.errors import LinkInvalid, LoginFailed

pytestmark = pytest.mark.anyio

ATTACKERS_PASSWORD = "twelve stolen bicycles"
DEARER = PasswordHasher.from_parameters(replace(CHEAPEST, time_cost=2))

Meanwhile = Callable[[], Awaitable[object]]


@pytest.fixture
def during(it: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Meanwhile], None]:
    """`during("hash", act)`: when a password is hashed (or verified) next, `act` is acknowledged before it is done."""

    def during(step: str, act: Meanwhile) -> None:
        work = getattr(it.passwords, step)

        async def interrupted(*args: object) -> object:
            monkeypatch.setattr(it.passwords, step, work)
            done = await work(*args)
            await act()
            return done

        monkeypatch.setattr(it.passwords, step, interrupted)

    return during


During = Callable[[str, Meanwhile], None]


async def reset(it: World, user: User, password: str = OTHER_PASSWORD) -> None:
    """What an administrator and the owner do about a stolen password."""
    link = await it.invitations.create(user.id)
    await it.invitations.redeem(link.token, password)


async def store_dear_hash(it: World) -> str:
    """What every password is stored as until its next login upgrades it."""
    stored = DEARER.hash(PASSWORD)
    async with it.db.write() as connection:
        await connection.execute(update(schema.users).values(password_hash=stored))
    return stored


async def assert_password(it: World, password: str) -> None:
    """This one is in force, and neither of the others."""
    for other in {PASSWORD, OTHER_PASSWORD, ATTACKERS_PASSWORD} - {password}:
        with pytest.raises(LoginFailed):
            await it.login.log_in("ann", other)
    await it.login.log_in("ann", password)


# Changing one's own password


@pytest.mark.parametrize("step", ["verify", "hash"])
async def test_a_change_does_not_overwrite_a_reset_that_was_acknowledged_meanwhile(
    it: World, during: During, step: str
) -> None:
    user = await it.user("ann")
    attacker = await it.logged_in(user)
    during(step, lambda: reset(it, user))
    with refused_with("token_revoked") as refused:
        await it.login.change_password(attacker, PASSWORD, ATTACKERS_PASSWORD)

    assert (refused.value.status, refused.value.code) == (401, "token_revoked")
    assert "user.password_changed" not in await it.actions()
    await assert_password(it, OTHER_PASSWORD)


@pytest.mark.parametrize(
    "how", ["logged out", "ended elsewhere", "disabled", "outlived a limit that was shortened"]
)
async def test_a_change_needs_its_session_to_be_open_still(
    it: World, during: During, how: str
) -> None:
    user = await it.user("ann")
    attacker, owner = await it.logged_in(user), await it.logged_in(user)

    async def end() -> None:
        if how == "logged out":
            await it.sessions.end(attacker.session_id or "", by=attacker)
        elif how == "ended elsewhere":
            await it.sessions.end_all(user.id, by=owner, keep=owner.session_id)
        elif how == "outlived a limit that was shortened":
            it.clock.sleep(600)
            await it.config.update({"session_lifetime_minutes": 10, "session_idle_minutes": 10})
        else:
            await it.users.change(user.id, disabled=True)

    during("hash", end)
    with refused_with("token_revoked"):
        await it.login.change_password(attacker, PASSWORD, ATTACKERS_PASSWORD)

    await it.users.change(user.id, disabled=False)
    await assert_password(it, PASSWORD)


async def test_a_change_without_a_session_is_refused(it: World) -> None:
    user = await it.user("ann")
    with refused_with("token_revoked"):
        await it.login.change_password(principal(user), PASSWORD, OTHER_PASSWORD)

    await assert_password(it, PASSWORD)


async def test_of_two_changes_in_one_session_the_later_one_gets_an_outdated_password(
    it: World, during: During
) -> None:
    user = await it.user("ann")
    here = await it.logged_in(user)
    during("hash", lambda: it.login.change_password(here, PASSWORD, OTHER_PASSWORD))
    with pytest.raises(InputInvalid) as refused:
        await it.login.change_password(here, PASSWORD, ATTACKERS_PASSWORD)

    assert [error.field for error in refused.value.errors] == ["current_password"]
    assert (await it.actions())[-1] == "user.password_change_failed"
    await assert_password(it, OTHER_PASSWORD)


async def test_a_hash_that_a_login_upgrades_meanwhile_does_not_make_the_password_wrong(
    it: World, during: During
) -> None:
    user = await it.user("ann")
    here = await it.logged_in(user)
    await store_dear_hash(it)
    during("verify", lambda: it.login.log_in("ann", PASSWORD))
    await it.login.change_password(here, PASSWORD, OTHER_PASSWORD)

    await assert_password(it, OTHER_PASSWORD)


# Logging in


async def test_upgrading_a_hash_does_not_overwrite_a_reset(it: World, during: During) -> None:
    user = await it.user("ann")
    await store_dear_hash(it)
    during("hash", lambda: reset(it, user))
    with pytest.raises(LoginFailed):
        await it.login.log_in("ann", PASSWORD)

    assert (await it.actions())[-1] == "login.failed"
    assert await it.rows("sessions") == []
    await assert_password(it, OTHER_PASSWORD)


async def test_two_logins_that_upgrade_the_same_hash_both_succeed(
    it: World, during: During
) -> None:
    await it.user("ann")
    stored = await store_dear_hash(it)
    during("hash", lambda: it.login.log_in("ann", PASSWORD))
    await it.login.log_in("ann", PASSWORD)

    assert (await it.actions())[1:] == ["login.succeeded"] * 2
    assert (await it.rows("users"))[0]["password_hash"] != stored


# Confirming the password


async def test_a_confirmed_password_does_not_outlive_a_reset(it: World, during: During) -> None:
    user = await it.user("ann")
    attacker = await it.logged_in(user)
    during("verify", lambda: reset(it, user))
    with pytest.raises(InputInvalid):
        await it.login.reauthenticate(attacker, PASSWORD)

    assert await it.sessions.list_open(user.id) == ()


async def test_a_session_that_has_ended_is_not_replaced(it: World, during: During) -> None:
    user = await it.user("ann")
    attacker = await it.logged_in(user)
    during("verify", lambda: it.sessions.end(attacker.session_id or "", by=attacker))
    with refused_with("token_revoked"):
        await it.login.reauthenticate(attacker, PASSWORD)

    assert await it.sessions.list_open(user.id) == ()


async def test_of_two_confirmations_in_one_session_one_replaces_it(it: World) -> None:
    user = await it.user("ann")
    here = await it.logged_in(user)
    other = compose(it.db.with_timeout(30), it.passwords)
    results = await asyncio.gather(
        it.login.reauthenticate(here, PASSWORD),
        other.login.reauthenticate(here, PASSWORD),
        return_exceptions=True,
    )
    await other.db.close()

    assert sorted(type(result).__name__ for result in results) == ["CredentialRefused", "LoggedIn"]
    assert len(await it.sessions.list_open(user.id)) == 1


# Links


async def test_a_link_does_not_overwrite_a_change_that_was_acknowledged_meanwhile(
    it: World, during: During
) -> None:
    user = await it.user("ann")
    owner = await it.logged_in(user)
    link = await it.invitations.create(user.id)
    during("hash", lambda: it.login.change_password(owner, PASSWORD, OTHER_PASSWORD))
    with pytest.raises(LinkInvalid):
        await it.invitations.redeem(link.token, ATTACKERS_PASSWORD)

    await assert_password(it, OTHER_PASSWORD)


@pytest.mark.parametrize("how", ["another link", "disabled and enabled"])
async def test_a_link_that_is_voided_while_it_is_redeemed_sets_nothing(
    it: World, during: During, how: str
) -> None:
    user = await it.user("ann")
    link = await it.invitations.create(user.id)

    async def void() -> None:
        if how == "another link":
            await it.invitations.create(user.id)
        else:
            await it.users.change(user.id, disabled=True)
            await it.users.change(user.id, disabled=False)

    during("hash", void)
    with pytest.raises(LinkInvalid):
        await it.invitations.redeem(link.token, ATTACKERS_PASSWORD)

    await assert_password(it, PASSWORD)


async def test_a_link_of_a_user_who_becomes_administrator_meanwhile_voids_the_printed_ones(
    it: World, during: During
) -> None:
    user = await it.user("ann", password=None)
    link = await it.invitations.create(user.id)
    printed = await it.invitations.create_for_first_administrator()
    assert printed is not None
    during("hash", lambda: it.users.change(user.id, roles=["admin"]))
    await it.invitations.redeem(link.token, PASSWORD)

    with pytest.raises(LinkInvalid):
        await it.invitations.redeem(printed.token, ATTACKERS_PASSWORD)


# What administrators do to others


async def log_out(it: World, admin: Principal[User]) -> None:
    await it.sessions.end(admin.session_id or "", by=admin)


async def demote(it: World, admin: Principal[User]) -> None:
    await it.users.change(admin.owner.id, roles=["user"])


async def disable(it: World, admin: Principal[User]) -> None:
    await it.users.change(admin.owner.id, disabled=True)


async def invite(it: World, admin: Principal[User], user: User) -> None:
    await it.invitations.create(user.id, by=admin)


async def promote(it: World, admin: Principal[User], user: User) -> None:
    await it.users.change(user.id, roles=["admin"], by=admin)


async def create_administrator(it: World, admin: Principal[User], user: User) -> None:
    await it.users.create("mallory", ["admin"], by=admin)


@pytest.mark.parametrize(
    ("overtaken", "refusal"),
    [(log_out, "token_revoked"), (disable, "token_revoked"), (demote, "permission_denied")],
)
async def test_a_former_administrator_writes_nothing(
    it: World,
    overtaken: Callable[[World, Principal[User]], Awaitable[None]],
    refusal: str,
) -> None:
    await it.user("root", "admin")
    user = await it.user("ann")
    # Its requests were authenticated before, so they carry the permissions of then.
    attacker = await it.logged_in(await it.user("attacker", "admin"))
    await overtaken(it, attacker)
    before = [await it.rows(table) for table in ("users", "password_links", "audit")]
    for deed in (invite, promote, create_administrator):
        with refused_with(refusal):
            await deed(it, attacker, user)

    assert [await it.rows(table) for table in ("users", "password_links", "audit")] == before


async def test_of_two_administrators_who_demote_each_other_at_once_one_is_too_late(
    it: World,
) -> None:
    one = await it.logged_in(await it.user("one", "admin"))
    two = await it.logged_in(await it.user("two", "admin"))
    other = compose(it.db.with_timeout(30), it.passwords)
    results = await asyncio.gather(
        it.users.change(two.owner.id, roles=["user"], by=one),
        other.users.change(one.owner.id, roles=["user"], by=two),
        return_exceptions=True,
    )
    await other.db.close()

    assert sorted(type(result).__name__ for result in results) == ["PermissionDenied", "User"]


# At the same moment, in two processes


async def test_of_a_change_and_a_reset_at_the_same_moment_one_happens(it: World) -> None:
    await it.user("root", "admin")
    user = await it.user("ann")
    async with AsyncExitStack() as stack:
        other = compose(it.db.with_timeout(30), it.passwords)
        stack.push_async_callback(other.db.close)
        for turn in range(12):
            current = PASSWORD
            attacker = await it.logged_in(user, current)
            link = await it.invitations.create(user.id)
            changed, redeemed = await asyncio.gather(
                it.login.change_password(attacker, current, ATTACKERS_PASSWORD),
                other.invitations.redeem(link.token, OTHER_PASSWORD),
                return_exceptions=True,
            )
            if redeemed is None:
                # Its session has ended, or it has not even seen the old password any more.
                assert isinstance(changed, CredentialRefused | InputInvalid), turn
                in_force = OTHER_PASSWORD
            else:
                assert isinstance(redeemed, LinkInvalid), turn
                assert changed is None, turn
                in_force = ATTACKERS_PASSWORD
            await assert_password(it, in_force)
            await reset(it, user, PASSWORD)
