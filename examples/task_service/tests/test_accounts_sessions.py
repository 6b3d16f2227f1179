"""Sessions: how they end, by limits in force, by people, and never by a clock that goes back (ASVS 5.0, section 7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from examples.task_service.tests.accounts_support import (
    PASSWORD,
    World,
    compose,
    principal,
)
from examples.task_service.tests.runs_support import failing
from examples.task_service.tests.waiting import eventually
from sqlalchemy import insert

from msk_auth import Session
from task_service.accounts.sessions import KEPT_FOR
from task_service.accounts.users import User
from task_service.background import Flushing
from task_service.db import schema
from task_service.errors import SessionNotFound

pytestmark = pytest.mark.anyio

HOUR = 3600.0


async def _log_in(it: World, name: str = "ann") -> str:
    return (await it.login.log_in(name, PASSWORD)).session_id


async def _find(it: World, session_id: str) -> Session:
    session = await it.sessions.find_session(session_id)
    assert session is not None
    return session


async def _is_open(it: World, session_id: str) -> bool:
    session = await _find(it, session_id)
    assert session.expires_at is not None
    return session.ended_at is None and it.clock.now() < session.expires_at


async def _ann(it: World) -> User:
    return await it.user("ann")


# By time


async def test_an_unused_session_is_over_after_the_idle_time(lite: World) -> None:
    await _ann(lite)
    session_id = await _log_in(lite)
    lite.clock.sleep(HOUR - 0.001)
    assert await _is_open(lite, session_id)
    lite.clock.sleep(0.001)
    assert not await _is_open(lite, session_id)


async def test_a_used_session_goes_on_until_its_absolute_end(lite: World) -> None:
    await _ann(lite)
    session_id = await _log_in(lite)
    for _ in range(23):
        lite.clock.sleep(HOUR / 2)
        assert await _is_open(lite, session_id)
        lite.sessions.seen(session_id, lite.clock.now())
    lite.clock.sleep(HOUR / 2)
    assert not await _is_open(lite, session_id)


async def test_shorter_limits_end_sessions_that_are_open_and_longer_ones_revive_none(
    it: World,
) -> None:
    await _ann(it)
    session_id = await _log_in(it)
    it.clock.sleep(600)
    await it.config.update({"session_idle_minutes": 10})
    assert not await _is_open(it, session_id)
    await it.config.update({"session_idle_minutes": 43200, "session_lifetime_minutes": 10})
    assert not await _is_open(it, session_id)
    await it.config.update({"session_lifetime_minutes": 43200})
    assert (await _find(it, session_id)).expires_at == it.clock.now() + timedelta(
        hours=12, minutes=-10
    )


async def test_limits_that_cannot_be_used_count_as_the_defaults(it: World) -> None:
    await _ann(it)
    async with it.db.write() as connection:
        await connection.execute(
            insert(schema.settings).values(
                name="session_idle_minutes", value="soon", updated_at=it.clock.now()
            )
        )
    session = await _find(it, await _log_in(it))

    assert session.expires_at == it.clock.now() + timedelta(hours=1)


# By people


async def test_ending_a_session_is_final_and_recorded(it: World) -> None:
    user = await _ann(it)
    session_id = await _log_in(it)
    it.sessions.seen(session_id, it.clock.now() + timedelta(minutes=5))
    it.lease_waits.clear()
    await it.sessions.end(session_id, by=principal(user, session_id=session_id))

    assert not await _is_open(it, session_id)
    assert it.lease_waits
    assert (await it.actions())[-1] == "session.ended"
    with pytest.raises(SessionNotFound):
        await it.sessions.end(session_id, by=principal(user))
    await it.sessions.flush()
    assert not await _is_open(it, session_id)


async def test_all_sessions_of_one_user_end_but_the_one_that_is_kept(it: World) -> None:
    ann, bob = await _ann(it), await it.user("bob")
    lapsed = await _log_in(it)
    it.clock.sleep(HOUR)
    own, other, foreign = await _log_in(it), await _log_in(it), await _log_in(it, "bob")
    waits = len(it.lease_waits)
    assert await it.sessions.end_all(ann.id, by=principal(ann), keep=own) == 1
    assert len(it.lease_waits) == waits + 1
    assert [await _is_open(it, each) for each in (lapsed, own, other, foreign)] == [
        False,
        True,
        False,
        True,
    ]
    assert await it.sessions.end_all(ann.id, by=principal(bob)) == 1
    assert not await _is_open(it, own)
    assert await it.sessions.end_all(ann.id, by=principal(bob)) == 0
    ended = [row for row in await it.rows("audit") if row["action"] == "session.all_ended"]
    assert [(row["actor_id"], row["target"], row["details"]) for row in ended] == [
        (ann.id, ann.id, {"ended": 1}),
        (bob.id, ann.id, {"ended": 1}),
    ]


async def test_a_session_that_is_none_is_not_found(it: World) -> None:
    user = await _ann(it)
    for session_id in ("", "ses_AAAAAAAAAAAAAAAA", "ses_\x00", "x" * 10_000, "%"):
        assert await it.sessions.find_session(session_id) is None
        with pytest.raises(SessionNotFound):
            await it.sessions.end(session_id, by=principal(user))


# Listing


async def test_only_one_s_own_open_sessions_are_listed_latest_first(it: World) -> None:
    user = await _ann(it)
    await it.user("eve")
    ended = await _log_in(it)
    await it.sessions.end(ended, by=principal(user))
    await _log_in(it)
    it.clock.sleep(HOUR)
    await _log_in(it, "eve")
    first = await _log_in(it)
    it.clock.sleep(1)
    second = await _log_in(it)

    assert [session.id for session in await it.sessions.list_open(user.id)] == [second, first]


# When it was last seen


async def test_being_seen_is_written_in_batches_and_never_moves_back(it: World) -> None:
    await _ann(it)
    session_id = await _log_in(it)
    began = it.clock.now()
    it.sessions.seen(session_id, began + timedelta(minutes=2))
    it.sessions.seen(session_id, began + timedelta(minutes=1))
    assert [row["last_seen_at"] for row in await it.rows("sessions")] == [began]
    await it.sessions.flush()
    other = compose(it.db, it.passwords)
    other.sessions.seen(session_id, began + timedelta(minutes=1))
    await other.sessions.flush()
    await other.sessions.flush()

    assert [row["last_seen_at"] for row in await it.rows("sessions")] == [
        began + timedelta(minutes=2)
    ]
    assert (await _find(other, session_id)).expires_at == began + timedelta(hours=1, minutes=2)


async def test_what_cannot_be_written_is_kept_for_the_next_time(
    lite: World, caplog: pytest.LogCaptureFixture
) -> None:
    await _ann(lite)
    session_id = await _log_in(lite)
    seen = lite.clock.now() + timedelta(minutes=2)
    lite.sessions.seen(session_id, seen)
    with failing(lite.db):
        await lite.sessions.flush()
    assert "trying again later" in caplog.text
    await lite.sessions.flush()

    assert [row["last_seen_at"] for row in await lite.rows("sessions")] == [seen]


async def test_what_is_seen_while_a_batch_is_written_is_not_lost(lite: World) -> None:
    await _ann(lite)
    session_id = await _log_in(lite)
    first, second = (lite.clock.now() + timedelta(minutes=n) for n in (1, 2))
    lite.sessions.seen(session_id, first)
    flushing = asyncio.create_task(lite.sessions.flush())
    await asyncio.sleep(0)
    lite.sessions.seen(session_id, second)
    await flushing
    await lite.sessions.flush()

    assert [row["last_seen_at"] for row in await lite.rows("sessions")] == [second]


async def test_an_open_service_writes_regularly_and_the_rest_when_it_stops(
    lite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _ann(lite)
    session_id = await _log_in(lite)
    first, second = (lite.clock.now() + timedelta(minutes=n) for n in (1, 2))
    monkeypatch.setattr(Flushing, "flush_seconds", 0.01)
    async with lite.sessions:

        async def written() -> bool:
            return (await lite.rows("sessions"))[0]["last_seen_at"] == first

        lite.sessions.seen(session_id, first)
        await eventually(written)
        monkeypatch.setattr(Flushing, "flush_seconds", 60)
        await asyncio.sleep(0.05)
        lite.sessions.seen(session_id, second)

    assert [row["last_seen_at"] for row in await lite.rows("sessions")] == [second]


# Tidying


async def test_what_has_long_been_over_is_deleted_and_nothing_else(it: World) -> None:
    user = await _ann(it)
    await it.config.update({"session_lifetime_minutes": 43200, "session_idle_minutes": 43200})
    ended, open_ = await _log_in(it), await _log_in(it)
    await it.sessions.end(ended, by=principal(user))
    await it.invitations.create(user.id)
    it.clock.sleep(KEPT_FOR.total_seconds())
    await it.sessions.purge()
    assert len(await it.rows("sessions")) == 2
    it.clock.sleep(1)
    await it.sessions.purge()
    assert [row["id"] for row in await it.rows("sessions")] == [open_]
    assert len(await it.rows("password_links")) == 1
    it.clock.sleep(KEPT_FOR.total_seconds())
    await it.sessions.purge()
    assert await it.rows("sessions") == await it.rows("password_links") == []
