"""Users: names, roles, disabling, and the administrator who must remain."""

from __future__ import annotations

import asyncio

import pytest
from examples.task_service.tests.accounts_support import (
    PASSWORD,
    World,
    compose,
)
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from msk_auth.errors import InputInvalid
from task_service.accounts.names import check_name, normalised_username
from task_service.accounts.roles import ROLE_PERMISSIONS
from task_service.accounts.users import User, UserQuery
from task_service.db import schema
from task_service.db.paging import PageRequest
from task_service.errors import LastAdministrator, UsernameTaken, UserNotFound

pytestmark = pytest.mark.anyio


# Names


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("ann", "ann"),
        ("Ann", "ann"),
        (" ann ", "ann"),
        ("ＡＮＮ", "ann"),
        ("ﬁona", "fiona"),
        ("Ångström", "ångström"),
        ("ann.o'neil+x@example.org", "ann.o'neil+x@example.org"),
        ("x" * 64, "x" * 64),
        ("Ω王", "ω王"),
    ],
)
def test_a_name_has_one_spelling(typed: str, stored: str) -> None:
    assert check_name(typed) == stored


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a b", "a\tb", "a\nb", "a\x00b", "a\u200bb", "a\u202eb", "a\u00a0b"),
        *("x" * 65, "\ud800", "ﷺ" * 10, "x" * 100_000),
    ],
)
def test_a_name_that_cannot_be_read_or_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        check_name(name)

    assert [error.field for error in caught.value.errors] == ["username"]


@given(st.text(max_size=80))
def test_a_name_that_was_accepted_is_found_under_itself(name: str) -> None:
    try:
        stored = check_name(name)
    except InputInvalid:
        return

    assert normalised_username(name) == stored
    assert normalised_username(stored) == stored


# What they may do


def test_an_administrator_may_all_that_a_user_may_and_more() -> None:
    assert ROLE_PERMISSIONS["user"] == {"tasks:read", "tasks:write", "tasks:run", "keys:manage"}
    assert ROLE_PERMISSIONS["admin"] - ROLE_PERMISSIONS["user"] == {
        "tasks:read_all",
        "tasks:manage_all",
        "runs:cancel_all",
        "runs:prioritize",
        "admin:config",
        "admin:users",
        "admin:keys",
        "admin:audit",
    }


# Creating and finding


async def test_a_new_user_is_found_by_id_and_by_any_spelling_of_the_name(it: World) -> None:
    created = await it.users.create("Ann", ["user", "user"])

    assert created == User(
        id=created.id,
        username="ann",
        roles=("user",),
        disabled=False,
        created_at=it.clock.now(),
        last_login_at=None,
        has_password=False,
    )
    assert await it.users.get(created.id) == created
    assert await it.users.get_by_name(" ANN") == created
    assert await it.actions() == ["user.created"]


async def test_a_name_is_taken_in_every_spelling_even_by_two_at_once(it: World) -> None:
    results = await asyncio.gather(
        *(it.users.create(name, ["user"]) for name in ("Ann", "ann", "ＡＮＮ")),
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in results) == [
        "User",
        "UsernameTaken",
        "UsernameTaken",
    ]
    assert len(await it.rows("users")) == 1
    assert await it.actions() == ["user.created"]
    with pytest.raises(UsernameTaken):
        await it.users.create("aNN", ["user"])


async def test_a_password_from_the_command_line_follows_the_rules(lite: World) -> None:
    with pytest.raises(InputInvalid):
        await lite.users.create("ann", ["user"], password="short")
    created = await lite.users.create("ann", ["user"], password=PASSWORD)

    assert created.has_password
    assert len(await lite.rows("users")) == 1


async def test_no_user_is_found_by_another_id_or_name(it: World) -> None:
    for user_id in ("", "usr_AAAAAAAAAAAAAAAA", "x" * 10_000, "usr_\x00", "%"):
        assert await it.users.find_owner(user_id) is None
        with pytest.raises(UserNotFound):
            await it.users.get(user_id)
    for name in ("bob", "", "a b", "\x00", "\ud800"):
        with pytest.raises(UserNotFound):
            await it.users.get_by_name(name)


# Listing


@pytest.fixture
async def people(it: World) -> dict[str, str]:
    """Their ids by their names."""
    created = [
        await it.users.create(name, roles)
        for name, roles in (
            ("ann", ["admin"]),
            ("Bob_Miller", ["user"]),
            ("bobby%", ["admin", "user"]),
            ("straße", ["user"]),
        )
    ]
    await it.users.change(created[1].id, disabled=True)
    return {user.username: user.id for user in created}


async def test_users_are_found(it: World, people: dict[str, str]) -> None:
    for query, found in (
        (UserQuery(), {"ann", "bob_miller", "bobby%", "straße"}),
        (UserQuery(search="BOB"), {"bob_miller", "bobby%"}),
        (UserQuery(search=" ob_m "), {"bob_miller"}),
        (UserQuery(search="%"), {"bobby%"}),
        (UserQuery(search="_"), {"bob_miller"}),
        (UserQuery(search="usr_"), set()),
        (UserQuery(search="\\"), set()),
        (UserQuery(search="STRAß"), {"straße"}),
        (UserQuery(role="admin"), {"ann", "bobby%"}),
        (UserQuery(role="user"), {"bob_miller", "bobby%", "straße"}),
        (UserQuery(disabled=True), {"bob_miller"}),
        (UserQuery(disabled=False), {"ann", "bobby%", "straße"}),
        (UserQuery(search="bob", role="user", disabled=False), {"bobby%"}),
    ):
        page = await it.users.list(query)
        assert {user.username for user in page.items} == found, query


async def test_users_are_found_by_their_ids_in_pages(it: World, people: dict[str, str]) -> None:
    for text, names in (
        (people["ann"], ["ann"]),
        (f" {people['ann']} ", ["ann"]),
        (people["ann"][:-1], []),
    ):
        page = await it.users.list(UserQuery(search=text))
        assert [user.username for user in page.items] == names
    first = await it.users.list(UserQuery(role="user"), PageRequest(limit=2))
    second = await it.users.list(
        UserQuery(role="user"), PageRequest(limit=2, cursor=first.next_cursor)
    )
    assert len({user.id for user in (*first.items, *second.items)}) == 3
    assert second.next_cursor is None


# Changing


async def test_disabling_ends_every_login_and_link_and_enabling_does_not_bring_them_back(
    it: World,
) -> None:
    user = await it.user("ann")
    session_id = (await it.login.log_in("ann", PASSWORD)).session_id
    await it.invitations.create(user.id)
    it.lease_waits.clear()
    disabled = await it.users.change(user.id, disabled=True)

    assert disabled.disabled
    assert it.lease_waits
    owner = await it.users.find_owner(user.id)
    assert owner is not None
    assert owner.disabled
    enabled = await it.users.change(user.id, disabled=False)
    assert not enabled.disabled
    session = await it.sessions.find_session(session_id)
    assert session is not None
    assert session.ended_at == it.clock.now()
    assert [row["used_at"] for row in await it.rows("password_links")] == [it.clock.now()]
    assert (await it.actions())[-2:] == ["user.disabled", "user.enabled"]


async def test_every_change_is_recorded_with_its_actor_and_no_change_is_not_recorded(
    it: World,
) -> None:
    admin = await it.logged_in(await it.user("root", "admin"))
    user = await it.user("ann")
    await it.users.change(user.id, by=admin, roles=["admin", "user"], disabled=False)
    await it.users.change(user.id, by=admin, roles=["user", "admin"])
    await it.users.change(user.id, by=admin)
    rows = [row for row in await it.rows("audit") if row["action"] == "user.roles_changed"]

    assert [(row["actor_id"], row["target"], row["details"]) for row in rows] == [
        (admin.owner.id, user.id, {"old": ["user"], "new": ["admin", "user"]})
    ]


# The last administrator


async def test_the_last_administrator_who_can_log_in_stays(it: World) -> None:
    admin = await it.user("root", "admin")
    invited = await it.users.create("invited", ["admin"])
    gone = await it.user("gone", "admin")
    await it.users.change(gone.id, disabled=True)
    with pytest.raises(LastAdministrator):
        await it.users.change(admin.id, disabled=True)
    with pytest.raises(LastAdministrator):
        await it.users.change(admin.id, roles=["user"])

    assert await it.users.get(admin.id) == admin
    assert await it.actions() == ["user.created"] * 3 + ["user.disabled"]
    # One who cannot log in may be removed.
    assert (await it.users.change(invited.id, disabled=True)).disabled


async def test_two_administrators_of_two_processes_cannot_remove_each_other(it: World) -> None:
    one, two = await it.user("one", "admin"), await it.user("two", "admin")
    other = compose(it.db.with_timeout(30), it.passwords)
    results = await asyncio.gather(
        it.users.change(one.id, disabled=True),
        other.users.change(two.id, roles=["user"]),
        return_exceptions=True,
    )
    await other.db.close()

    assert sorted(type(result).__name__ for result in results) == ["LastAdministrator", "User"]


async def test_a_new_role_and_disabling_at_the_same_moment_both_hold(it: World) -> None:
    await it.user("root", "admin")
    user = await it.user("ann")
    other = compose(it.db.with_timeout(30), it.passwords)
    await asyncio.gather(
        it.users.change(user.id, disabled=True), other.users.change(user.id, roles=["admin"])
    )
    await other.db.close()

    changed = await it.users.get(user.id)
    assert (changed.disabled, changed.roles) == (True, ("admin",))


async def test_a_user_with_a_damaged_row_is_not_taken_for_another(lite: World) -> None:
    user = await lite.user("ann")
    async with lite.db.write() as connection:
        await connection.execute(update(schema.users).values(roles=["astronaut"]))

    owner = await lite.users.find_owner(user.id)
    assert owner is not None
    assert owner.permissions == frozenset()
