"""One-time links: good once, for a week, for one user, and never readable from the database (ASVS 5.0, section 6.4)."""

from __future__ import annotations

import asyncio
import re

import pytest
from examples.task_service.tests.accounts_support import (
    OTHER_PASSWORD,
    PASSWORD,
    World,
    compose,
)

from msk_auth.errors import InputInvalid, StoreUnavailable
from task_service.accounts.invitations import LINK_LIFETIME, Invitations
from task_service.errors import LinkInvalid, LoginFailed, UsernameTaken, UserNotFound

pytestmark = pytest.mark.anyio


async def test_a_link_lets_its_user_choose_a_password_once(it: World) -> None:
    admin = await it.logged_in(await it.user("root", "admin"))
    user = await it.user("ann", password=None)
    link = await it.invitations.create(user.id, by=admin)
    it.lease_waits.clear()
    await it.invitations.redeem(link.token, PASSWORD)

    assert (await it.users.get(user.id)).has_password
    assert it.lease_waits
    await it.login.log_in("ann", PASSWORD)
    with pytest.raises(LinkInvalid):
        await it.invitations.redeem(link.token, OTHER_PASSWORD)
    assert (await it.actions())[3:] == ["user.invited", "user.password_set", "login.succeeded"]


async def test_the_secret_is_in_the_fragment_and_nowhere_else(lite: World) -> None:
    user = await lite.user("ann", password=None)
    link = await lite.invitations.create(user.id)

    assert re.fullmatch(r"[0-9A-Za-z_-]{43}", link.token)
    assert link.invitation_url == f"https://tasks.test/set-password#{link.token}"
    assert link.token not in repr(link)
    assert link.token not in str([await lite.rows("password_links"), await lite.rows("audit")])


async def test_a_user_is_made_together_with_their_link_or_not_at_all(
    it: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await it.invitations.create_user("Ann", ["user"])
    assert link.user == await it.users.get_by_name("ann")
    await it.invitations.redeem(link.token, PASSWORD)
    with pytest.raises(UsernameTaken):
        await it.invitations.create_user("ANN", ["user"])

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable

    before = [await it.rows(table) for table in ("users", "password_links", "audit")]
    monkeypatch.setattr(Invitations, "_add_link", fail)
    with pytest.raises(StoreUnavailable):
        await it.invitations.create_user("bob", ["user"])
    assert [await it.rows(table) for table in ("users", "password_links", "audit")] == before


async def test_a_link_lasts_a_week(lite: World) -> None:
    user = await lite.user("ann", password=None)
    link = await lite.invitations.create(user.id)
    assert link.expires_at == lite.clock.now() + LINK_LIFETIME
    lite.clock.sleep(LINK_LIFETIME.total_seconds())
    with pytest.raises(LinkInvalid):
        await lite.invitations.redeem(link.token, PASSWORD)


async def test_a_new_link_voids_the_older_ones_of_the_same_user_only(it: World) -> None:
    ann, bob = await it.user("ann", password=None), await it.user("bob", password=None)
    old, other = await it.invitations.create(ann.id), await it.invitations.create(bob.id)
    new = await it.invitations.create(ann.id)
    with pytest.raises(LinkInvalid):
        await it.invitations.redeem(old.token, PASSWORD)

    await it.invitations.redeem(new.token, PASSWORD)
    await it.invitations.redeem(other.token, PASSWORD)


async def test_of_two_links_made_at_once_one_is_good(it: World) -> None:
    user = await it.user("ann", password=None)
    other = compose(it.db.with_timeout(30), it.passwords)
    links = await asyncio.gather(
        *(each.invitations.create(user.id) for each in (it, other) for _ in range(3))
    )
    await other.db.close()
    unspent = [row for row in await it.rows("password_links") if row["used_at"] is None]

    assert len(links) == 6
    assert len(unspent) == 1


async def test_of_concurrent_redemptions_of_a_link_one_succeeds(it: World) -> None:
    user = await it.user("ann", password=None)
    link = await it.invitations.create(user.id)
    chosen = [f"nine violet submarines {number}" for number in range(6)]
    results = await asyncio.gather(
        *(it.invitations.redeem(link.token, password) for password in chosen),
        return_exceptions=True,
    )
    winners = [
        password
        for password, result in zip(chosen, results, strict=True)
        if not isinstance(result, Exception)
    ]

    assert [type(result) for result in results].count(LinkInvalid) == 5
    assert (await it.login.log_in("ann", winners[0])).user.id == user.id


async def test_what_is_no_link_is_refused_before_anything_is_hashed(lite: World) -> None:
    await lite.user("ann", password=None)
    for token in ["", "x", "A" * 43, "A" * 42 + "\x00", "A" * 100_000, "\ud800" * 43, "%" * 43]:
        with pytest.raises(LinkInvalid) as caught:
            await lite.invitations.redeem(token, PASSWORD)
        assert (caught.value.status, caught.value.code) == (410, "link_invalid")

    assert lite.passwords.hashed == 0


async def test_a_password_that_is_refused_leaves_the_link_good(lite: World) -> None:
    user = await lite.user("marianne", password=None)
    link = await lite.invitations.create(user.id)
    for password in ("short", "password1234", "marianne violet 9"):
        with pytest.raises(InputInvalid) as caught:
            await lite.invitations.redeem(link.token, password)
        assert [error.field for error in caught.value.errors] == ["password"]

    await lite.invitations.redeem(link.token, PASSWORD)


async def test_a_forgotten_password_is_replaced_and_open_sessions_end(lite: World) -> None:
    user = await lite.user("ann")
    session_id = (await lite.login.log_in("ann", PASSWORD)).session_id
    link = await lite.invitations.create(user.id)
    await lite.login.log_in("ann", PASSWORD)
    await lite.invitations.redeem(link.token, OTHER_PASSWORD)
    session = await lite.sessions.find_session(session_id)

    assert session is not None
    assert session.ended_at == lite.clock.now()
    with pytest.raises(LoginFailed):
        await lite.login.log_in("ann", PASSWORD)
    await lite.login.log_in("ann", OTHER_PASSWORD)


async def test_a_disabled_user_gets_no_link_and_cannot_use_an_old_one(lite: World) -> None:
    user = await lite.user("ann", password=None)
    link = await lite.invitations.create(user.id)
    await lite.users.change(user.id, disabled=True)
    with pytest.raises(LinkInvalid):
        await lite.invitations.redeem(link.token, PASSWORD)
    with pytest.raises(InputInvalid, match="disabled"):
        await lite.invitations.create(user.id)
    with pytest.raises(UserNotFound):
        await lite.invitations.create("usr_AAAAAAAAAAAAAAAA")


async def test_no_link_is_made_for_a_user_who_is_being_disabled(it: World) -> None:
    user = await it.user("ann")
    other = compose(it.db.with_timeout(30), it.passwords)
    for _ in range(5):
        await asyncio.gather(
            it.users.change(user.id, disabled=True),
            other.invitations.create(user.id),
            return_exceptions=True,
        )
        assert all(row["used_at"] is not None for row in await it.rows("password_links"))
        await it.users.change(user.id, disabled=False)
    await other.db.close()


# The first administrator


async def test_an_administrator_without_a_password_is_reused(lite: World) -> None:
    await lite.user("user")
    await lite.user("root", "admin", password=None)
    link = await lite.invitations.create_for_first_administrator()

    assert link is not None
    assert link.user.username == "root"


async def test_a_user_who_is_called_admin_is_not_made_one(lite: World) -> None:
    await lite.user("admin")
    link = await lite.invitations.create_for_first_administrator()

    assert link is not None
    assert re.fullmatch(r"admin-[0-9a-f]{6}", link.user.username)
    assert (await lite.users.get_by_name("admin")).roles == ("user",)
