"""How passwords and links are written: one writer at a time, for a login that is still open, over what was read.

A password is verified and hashed outside of any transaction, for tens of milliseconds in which a reset may be
acknowledged. So every writer of a credential takes the turn of all such writes, checks in the same transaction that the
login it acts for is still open, and replaces only what was verified. What began earlier never overwrites what was
acknowledged.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Principal
from task_service.db import schema
from task_service.db.engine import lock_table

from .password_links import void_links
from .sessions import end_open_sessions, require_open

_USERS = schema.users.c


async def begin_credential_write(
    connection: AsyncConnection, by: Principal[Any] | None, now: datetime
) -> None:
    """Take the turn of all that write credentials, disable users or change roles; the first statement of each.

    The users are always locked before links and sessions, so that no two transactions wait for each other.

    Args:
        connection: In a write transaction.
        by: Who writes; None means the service itself, its command line, or a link.
        now: When.

    Raises:
        TokenRevoked: The login of `by` has ended since its request was authenticated.
    """
    await lock_table(connection, schema.users)
    if by is not None:
        await require_open(connection, by, now)


async def replace_password(
    connection: AsyncConnection,
    user_id: str,
    password_hash: str,
    now: datetime,
    *,
    verified_hash: str | None = None,
    keep_session: str | None = None,
) -> bool:
    """Give a user another password. Their links are void and their login sessions end.

    Args:
        connection: After :func:`begin_credential_write`.
        user_id: Whose.
        password_hash: As :meth:`Passwords.hash` made it.
        now: When.
        verified_hash: The hash that the present password was verified against; None when a link was redeemed instead.
        keep_session: The one session that goes on: the one in which the password was changed.

    Returns:
        False if the stored hash is no longer `verified_hash`; then nothing was changed.
    """
    conditions = [_USERS.id == user_id]
    if verified_hash is not None:
        conditions.append(_USERS.password_hash == verified_hash)
    replaced = await connection.execute(
        update(schema.users).where(*conditions).values(password_hash=password_hash)
    )
    if replaced.rowcount != 1:
        return False
    await void_links(connection, user_id, now)
    await end_open_sessions(connection, user_id, now, keep=keep_session)
    return True
