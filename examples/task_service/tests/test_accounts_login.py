"""Logging in: no enumeration, throttling, sessions that begin, and changing the password.

ASVS 5.0, sections 6.3.1 (throttling), 6.3.8 (enumeration), 7.2 and 7.4 (sessions); NIST SP 800-63B-4, section 3.2.2.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import (
    OTHER_PASSWORD,
    PASSWORD,
    World,
    client,
    principal,
)
from examples.task_service.tests.runs_support import failing
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from msk_auth.errors import InputInvalid, StoreUnavailable, TooManyAttempts
from task_service.accounts.sessions import LoggedIn
from task_service.accounts.throttle import (
    PER_ACCOUNT,
    PER_ADDRESS,
    PER_PAIR,
    throttled_network,
)
from task_service.db import schema
from task_service.errors import LoginFailed

pytestmark = pytest.mark.anyio

HOME = "192.0.2.1"
WRONG = "wrong violet submarines"


async def _log_in(it: World, name: str, password: str, *, address: str | None) -> LoggedIn:
    with client(address):
        return await it.login.log_in(name, password)


async def _fail(it: World, name: str = "ann", address: str | None = HOME) -> None:
    with pytest.raises(LoginFailed):
        await _log_in(it, name, WRONG, address=address)


# Success


async def test_a_login_begins_a_session_and_gives_a_token_of_it(it: World) -> None:
    user = await it.user("ann")
    it.clock.sleep(90.5)
    with client(HOME, "Browser/1"):
        logged_in = await it.login.log_in(" ANN", PASSWORD)
    claims = it.tokens.verify(logged_in.token, it.clock.now())
    (row,) = await it.rows("sessions")
    entry = (await it.rows("audit", "id"))[-1]

    assert logged_in.user == user
    assert (await it.users.get(user.id)).last_login_at == it.clock.now()
    assert logged_in.expires_in == 720 * 60
    assert (claims.subject, claims.session_id) == (user.id, logged_in.session_id)
    assert claims.authenticated_at == it.clock.now().replace(microsecond=0)
    assert claims.expires_at - claims.authenticated_at == timedelta(minutes=720)
    assert row["address"] == HOME
    assert row["user_agent"] == "Browser/1"
    assert (entry["action"], entry["actor_id"], entry["credential_id"]) == (
        "login.succeeded",
        user.id,
        logged_in.session_id,
    )
    assert logged_in.token not in repr(logged_in)


async def test_no_secret_is_in_the_database(it: World) -> None:
    await it.user("ann")
    logged_in = await it.login.log_in("ann", PASSWORD)
    dump = str([await it.rows(name) for name in schema.metadata.tables])

    assert PASSWORD not in dump
    assert logged_in.token not in dump


async def test_a_password_that_was_hashed_cheaply_is_hashed_anew_at_login(it: World) -> None:
    await it.user("ann")
    old = PasswordHasher.from_parameters(replace(CHEAPEST, time_cost=2)).hash(PASSWORD)
    async with it.db.write() as connection:
        await connection.execute(update(schema.users).values(password_hash=old))
    await it.login.log_in("ann", PASSWORD)
    (row,) = await it.rows("users")

    assert row["password_hash"] != old
    assert not it.passwords.needs_rehash(row["password_hash"])
    await it.login.log_in("ann", PASSWORD)


# One refusal for everything


async def _nothing(it: World) -> None:
    """There is no such user."""


async def _wrong_password(it: World) -> None:
    await it.user("ann", password=OTHER_PASSWORD)


async def _no_password(it: World) -> None:
    await it.user("ann", password=None)


async def _disabled(it: World) -> None:
    user = await it.user("ann")
    await it.users.change(user.id, disabled=True)


@pytest.mark.parametrize("situation", [_nothing, _wrong_password, _no_password, _disabled])
async def test_whatever_is_wrong_answer_and_work_are_the_same(lite: World, situation: Any) -> None:
    await situation(lite)
    before = await lite.actions()
    lite.passwords.verified = 0
    with pytest.raises(LoginFailed) as caught:
        await _log_in(lite, "ann", PASSWORD, address=HOME)

    assert (caught.value.status, caught.value.code) == (401, "login_failed")
    assert str(caught.value) == LoginFailed.default_detail
    assert lite.passwords.verified == 1
    assert (await lite.actions())[len(before) :] == ["login.failed"]
    assert await lite.rows("sessions") == []


async def test_what_can_be_no_name_costs_and_gets_the_same(lite: World) -> None:
    names = ("", "a b", "\x00", "x" * 100_000, "\ud800")
    for name in names:
        with pytest.raises(LoginFailed):
            await _log_in(lite, name, PASSWORD, address=HOME)

    assert lite.passwords.verified == len(names)


async def test_a_failed_login_does_not_record_what_was_typed(lite: World) -> None:
    await lite.user("ann")
    with pytest.raises(LoginFailed):
        await lite.login.log_in(PASSWORD, "ann")

    assert PASSWORD not in str(await lite.rows("audit"))


@pytest.mark.parametrize("meanwhile", ["disabled", "new password"])
async def test_a_login_that_is_overtaken_by_a_change_of_the_account_fails(
    lite: World, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await lite.user("ann")
    verify = lite.passwords.verify

    async def slow(password: str, encoded: str | None) -> bool:
        matches = await verify(password, encoded)
        if meanwhile == "disabled":
            await lite.users.change(user.id, disabled=True)
        else:
            link = await lite.invitations.create(user.id)
            await lite.invitations.redeem(link.token, OTHER_PASSWORD)
        return matches

    monkeypatch.setattr(lite.passwords, "verify", slow)
    with pytest.raises(LoginFailed):
        await lite.login.log_in("ann", PASSWORD)

    assert await lite.rows("sessions") == []


# Throttling


async def test_ten_wrong_passwords_lock_an_account_for_an_address(lite: World) -> None:
    await lite.user("ann")
    for name in ("ann", "ANN", " ann", "ＡＮＮ", "Ann") * 2:
        await _fail(lite, name)
        # An account that does not exist is locked in the same way.
        await _fail(lite, "stranger")
    lite.passwords.verified = 0
    for name in ("ann", "aNN", "stranger"):
        with pytest.raises(TooManyAttempts) as caught:
            await _log_in(lite, name, PASSWORD, address=HOME)
        assert caught.value.retry_after == 15 * 60

    # The attempts were refused before a password was verified.
    assert lite.passwords.verified == 0
    await _log_in(lite, "ann", PASSWORD, address="192.0.2.2")


async def test_a_right_password_forgets_the_wrong_ones(lite: World) -> None:
    await lite.user("ann")
    for _ in range(3):
        for _ in range(PER_PAIR - 1):
            await _fail(lite)
        await _log_in(lite, "ann", PASSWORD, address=HOME)


async def test_right_passwords_are_not_counted_at_all(lite: World) -> None:
    await lite.user("ann")
    for _ in range(PER_ADDRESS + 5):
        await _log_in(lite, "ann", PASSWORD, address=HOME)


async def test_one_address_guesses_fifty_times_whatever_the_names(lite: World) -> None:
    await lite.user("ann")
    for number in range(PER_ADDRESS):
        await _fail(lite, f"user{number}")
    with pytest.raises(TooManyAttempts):
        await _log_in(lite, "ann", PASSWORD, address=HOME)

    await _log_in(lite, "ann", PASSWORD, address="2001:db8::1")


async def test_one_account_allows_a_hundred_guesses_from_all_addresses(lite: World) -> None:
    await lite.user("ann")
    for number in range(PER_ACCOUNT):
        await _fail(lite, address=f"192.0.2.{number}")
    with pytest.raises(TooManyAttempts):
        await _log_in(lite, "ann", PASSWORD, address="198.51.100.1")


async def test_parallel_guesses_are_limited_to_ten(lite: World) -> None:
    await lite.user("ann")
    results = await asyncio.gather(
        *(_log_in(lite, "ann", WRONG, address=HOME) for _ in range(60)),
        return_exceptions=True,
    )

    kinds = [type(result) for result in results]
    assert kinds.count(LoginFailed) == PER_PAIR
    assert kinds.count(TooManyAttempts) == 60 - PER_PAIR
    assert lite.passwords.verified == PER_PAIR


async def test_a_session_that_has_begun_is_answered_even_if_the_attempts_cannot_be_cleared(
    lite: World,
) -> None:
    await lite.user("ann")
    await _fail(lite)
    with failing(lite.db, "UPDATE login_attempts") as refused:
        logged_in = await _log_in(lite, "ann", PASSWORD, address=HOME)
    assert refused
    assert [row["id"] for row in await lite.rows("sessions")] == [logged_in.session_id]
    # They count until their window ends.
    for _ in range(PER_PAIR - 2):
        await _fail(lite)
    with pytest.raises(TooManyAttempts):
        await _log_in(lite, "ann", PASSWORD, address=HOME)


async def test_an_attempt_that_could_not_be_judged_is_not_counted(
    lite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lite.user("ann")
    with failing(lite.db):
        for _ in range(PER_PAIR + 1):
            with pytest.raises(StoreUnavailable):
                await _log_in(lite, "ann", PASSWORD, address=HOME)

    async def busy(password: str, encoded: str | None) -> bool:
        raise TooManyAttempts(2)

    with monkeypatch.context() as patch:
        patch.setattr(lite.passwords, "verify", busy)
        for _ in range(PER_PAIR + 1):
            with pytest.raises(TooManyAttempts) as caught:
                await _log_in(lite, "ann", PASSWORD, address=HOME)
            assert caught.value.retry_after == 2

    await _log_in(lite, "ann", PASSWORD, address=HOME)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_what_counts_as_one_address(address: str | None, network: str) -> None:
    assert throttled_network(address) == network


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_no_choice_of_the_lower_half_is_another_address(address: Any, lower: int) -> None:
    same_network = type(address)((int(address) >> 64 << 64) | lower)
    if address.ipv4_mapped is None and same_network.ipv4_mapped is None:
        assert throttled_network(str(address)) == throttled_network(str(same_network))


# Logging out and changing the password


async def test_a_confirmed_password_replaces_the_session_and_is_audited(it: World) -> None:
    user = await it.user("ann")
    before = await it.logged_in(user)
    it.clock.sleep(1200)
    it.lease_waits.clear()
    with client(HOME, "Browser/2"):
        after = await it.login.reauthenticate(before, PASSWORD)
    (session,) = await it.sessions.list_open(user.id)
    claims = it.tokens.verify(after.token, it.clock.now())
    entry = (await it.rows("audit", "id"))[-1]

    assert session.id == after.session_id != before.session_id
    assert session.user_agent == "Browser/2"
    assert claims.authenticated_at == it.clock.now()
    assert it.lease_waits
    assert (entry["action"], entry["credential_id"]) == ("login.succeeded", session.id)
    assert entry["details"] == {"replaced": before.session_id}


async def test_a_changed_password_ends_the_other_sessions_and_not_this_one(it: World) -> None:
    user = await it.user("ann")
    here = (await it.login.log_in("ann", PASSWORD)).session_id
    there = (await it.login.log_in("ann", PASSWORD)).session_id
    await it.invitations.create(user.id)
    it.lease_waits.clear()
    await it.login.change_password(principal(user, session_id=here), PASSWORD, OTHER_PASSWORD)
    sessions = [await it.sessions.find_session(each) for each in (here, there)]

    assert [session is not None and session.ended_at is None for session in sessions] == [
        True,
        False,
    ]
    assert it.lease_waits
    assert all(row["used_at"] is not None for row in await it.rows("password_links"))
    assert (await it.actions())[-1] == "user.password_changed"
    await it.login.log_in("ann", OTHER_PASSWORD)
    await _fail(it)


async def test_a_change_that_is_refused_names_the_field_and_changes_nothing(lite: World) -> None:
    user = await lite.user("ann")
    for current, new, field in (
        (WRONG, OTHER_PASSWORD, "current_password"),
        ("", OTHER_PASSWORD, "current_password"),
        (PASSWORD, "short", "new_password"),
        (PASSWORD, "password1234", "new_password"),
    ):
        with pytest.raises(InputInvalid) as caught:
            await lite.login.change_password(principal(user), current, new)
        assert [error.field for error in caught.value.errors] == [field]

    await lite.login.log_in("ann", PASSWORD)
