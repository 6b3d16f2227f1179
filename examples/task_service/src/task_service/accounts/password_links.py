"""When links with which people choose a password become void: see :mod:`task_service.accounts.invitations`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from task_service.db import schema

if TYPE_CHECKING:
    from .users import User

MAX_FIRST_LINKS: Final = 16
"""How many links to become the first administrator work at a time: one for each process, and a few restarts."""

_LINKS = schema.password_links.c


async def void_links(connection: AsyncConnection, user_id: str, now: datetime) -> None:
    """Void the links of a user."""
    await connection.execute(
        update(schema.password_links)
        .where(_LINKS.user_id == user_id, _LINKS.used_at.is_(None))
        .values(used_at=now)
    )


async def void_first_links(
    connection: AsyncConnection, administrators: Sequence[User], now: datetime
) -> None:
    """Void every link to become the first administrator, because somebody else becomes it.

    Those links stand in the output of whatever processes were started, and nobody who reads it a week later may become
    an administrator with one. Once an administrator can log in there are none, and this changes nothing.

    Args:
        connection: In a write transaction that has locked the users.
        administrators: Those there were before.
        now: When.
    """
    if any(user.has_password for user in administrators):
        return
    for user in administrators:
        await void_links(connection, user.id, now)


async def void_oldest_first_links(connection: AsyncConnection, user_id: str, now: datetime) -> None:
    """Leave room for one more: a process that is started over and over must not leave ever more ways in."""
    kept = (
        select(_LINKS.token_digest)
        .where(_LINKS.user_id == user_id, _LINKS.used_at.is_(None))
        .order_by(_LINKS.created_at.desc(), _LINKS.token_digest)
        .limit(MAX_FIRST_LINKS - 1)
    )
    await connection.execute(
        update(schema.password_links)
        .where(
            _LINKS.user_id == user_id,
            _LINKS.used_at.is_(None),
            _LINKS.token_digest.not_in(kept.subquery().select()),
        )
        .values(used_at=now)
    )
